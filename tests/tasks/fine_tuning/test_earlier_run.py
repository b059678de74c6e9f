"""Tests reading settings and results from the folder of a finished run."""

import json
from pathlib import Path

import pytest

from keras_bert.checkpoints.earlier_run import EarlierRun
from keras_bert.errors import InputError


def run_with(folder: Path, settings: dict, results: dict | None = None) -> EarlierRun:
    (folder / "model").mkdir()
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    (folder / "results.json").write_text(json.dumps(results or {}))
    return EarlierRun(folder / "model")


@pytest.mark.parametrize(
    ("settings", "results", "threshold"),
    [
        # As run_squad predicts: the given threshold, else the one it found.
        ({"null_score_diff_threshold": 2}, {"null_score_diff_threshold": 2}, 2),
        ({"null_score_diff_threshold": None}, {"null_score_diff_threshold": -1.5}, -1.5),
        ({}, {"best_f1_thresh": 3.0, "null_score_diff_threshold": -7.5}, -7.5),
        ({}, {}, 0.0),
    ],
)
def test_threshold_is_read_from_the_run(settings, results, threshold, tmp_path: Path):
    assert run_with(tmp_path, settings, results).threshold() == threshold


def test_setting_of_another_type_is_named(tmp_path: Path):
    run = run_with(tmp_path, {"max_seq_length": "9"})
    with pytest.raises(
        InputError, match=r"run.json: max_seq_length is '9'; expected a whole number"
    ):
        run.setting("max_seq_length", int, None)
