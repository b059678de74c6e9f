"""What the files beside a model say of how it was trained, and how its vectors are taken."""

import json
import shutil
from pathlib import Path

import pytest

from keras_bert.errors import InputError
from keras_bert.tasks.export.origin import Run, SentenceTransformer


def run_with(folder: Path, settings: dict, results: dict | None = None, name: str = "model") -> Run:
    (folder / name).mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"settings": settings}))
    (folder / "results.json").write_text(json.dumps(results or {}))
    return Run.of(folder / name)


@pytest.mark.parametrize(
    ("settings", "pair"),
    [
        ({"task_name": "MRPC"}, True),
        ({"task_name": "mrpc"}, True),
        ({"task_name": "stsb"}, True),
        ({"task_name": "sst2"}, False),
        ({"task_name": "custom"}, False),
        ({"task_name": "Custom", "text_pair_column": "b"}, True),
        ({"text_pair_column": ""}, False),
        ({}, False),
    ],
)
def test_pairs_are_told_by_the_task_in_any_spelling(settings: dict, pair: bool, tmp_path: Path):
    assert run_with(tmp_path, settings).is_of_pairs() is pair


@pytest.mark.parametrize(
    ("settings", "results", "threshold"),
    [
        # As run_squad answers other questions: what is given, else what it found.
        ({"null_score_diff_threshold": 2}, {"null_score_diff_threshold": 2}, 2),
        ({"null_score_diff_threshold": None}, {"null_score_diff_threshold": -1.5}, -1.5),
        ({}, {"best_f1_thresh": 3.0, "null_score_diff_threshold": -7.5}, -7.5),
        ({}, {}, 0.0),
    ],
)
def test_the_threshold_is_the_runs(settings, results, threshold, tmp_path: Path):
    assert run_with(tmp_path, settings, results).threshold() == threshold


@pytest.mark.parametrize(("name", "is_read"), [("model", True), ("best", True), ("bert", False)])
def test_the_files_are_those_of_a_runs_own_model(name: str, is_read: bool, tmp_path: Path):
    run = run_with(tmp_path, {"max_seq_length": 9}, {"f1": 1.0}, name)
    assert run.setting("max_seq_length", int, None) == (9 if is_read else None)
    assert bool(run.results) is is_read


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("9", int, "run.json: max_seq_length is '9'; expected a whole number"),
        (True, int, "expected a whole number"),
        (9.5, int, "expected a whole number"),
        ("9", float, "expected a number"),
        (1, bool, "expected true or false"),
        (1, str, "expected a text"),
    ],
)
def test_a_setting_of_another_kind_is_named(value, kind: type, message: str, tmp_path: Path):
    run = run_with(tmp_path, {"max_seq_length": value})
    with pytest.raises(InputError, match=message):
        run.setting("max_seq_length", kind, None)


MODULES = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]


def sentence_transformer(folder: Path, modules: list, pooling: dict) -> SentenceTransformer:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1_Pooling").mkdir(parents=True)
    listed = [{"path": path, "type": f"sentence_transformers.models.{k}"} for path, k in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return SentenceTransformer.of(folder)


def test_pooling_and_normalization_are_those_of_the_modules(tmp_path: Path):
    older = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    of_both = SentenceTransformer(None, "cls", True)
    assert sentence_transformer(tmp_path / "a", MODULES, older) == of_both
    assert sentence_transformer(tmp_path / "a", MODULES, {"pooling_mode": "cls"}) == of_both
    plain = sentence_transformer(tmp_path / "a", MODULES[:2], {"pooling_mode": ["mean"]})
    assert plain == SentenceTransformer(None, "mean", False)
    assert SentenceTransformer.of(tmp_path) == SentenceTransformer()


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        (MODULES, {"pooling_mode": "max"}, "pooling max is not exported"),
        (MODULES, {"pooling_mode": ["cls", "mean"]}, "pooling cls, mean is not exported"),
        ([*MODULES, ("3_Dense", "Dense")], {"pooling_mode": "mean"}, "Dense is not exported"),
    ],
)
def test_what_is_not_served_is_said(modules, pooling, said, tmp_path: Path, caplog):
    assert sentence_transformer(tmp_path / "a", modules, pooling).pooling is None
    assert said in caplog.text


def test_the_length_is_that_of_sentence_bert(tmp_path: Path):
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    assert SentenceTransformer.of(tmp_path).max_seq_length == 256
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "256"}')
    with pytest.raises(InputError, match=r"max_seq_length is '256'; expected a whole number"):
        SentenceTransformer.of(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", '[{"type": "Pooling"}]', "5"])
def test_a_broken_list_of_modules_is_named(content: str, tmp_path: Path):
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(InputError, match=r"modules\.json: cannot be read; expected .* list"):
        SentenceTransformer.of(tmp_path)
