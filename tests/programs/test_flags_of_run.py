"""Unset flags are taken from the run to predict with; explicit and training flags are kept."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from keras_bert.errors import InputError
from keras_bert.options import option
from keras_bert.programs.fine_tuning import use_flags_of_run
from keras_bert.programs.options import define_flags


@dataclass(frozen=True)
class Settings:
    init_checkpoint: str = option("out", "")
    do_train: bool = option(False, "")
    max_seq_length: int = option(128, "", min=3)
    by_pair: bool = option(False, "")
    threshold: float | None = option(None, "")
    column: str = option("text", "")
    kind: str = option("a", "", choices=("a", "b"))
    names: Sequence[str] = option(("a",), "")
    learning_rate: float = option(5e-5, "")


@pytest.fixture
def flags_of(monkeypatch, tmp_path):
    """Returns a function: (settings of the run in ./out, *arguments) -> flags, run found."""

    def parse(settings, *arguments):
        values = define_flags((Settings,))
        values(["program", *arguments])
        monkeypatch.chdir(tmp_path)
        (tmp_path / "out" / "best").mkdir(parents=True, exist_ok=True)
        record = {"settings": {"learning_rate": 1.0, **settings}}
        (tmp_path / "out" / "run.json").write_text(json.dumps(record))
        names = ("by_pair", "threshold", "column", "kind", "names")
        run = use_flags_of_run(values, *names)
        return values, run

    return parse


SETTINGS = {"max_seq_length": 256, "by_pair": True, "threshold": 2, "column": "b"}
SETTINGS |= {"names": ["0", "5"]}


def test_settings_of_the_model_take_precedence_over_those_of_its_run(flags_of, tmp_path):
    """The model of a run may have been replaced; a copied model has no run."""
    (tmp_path / "out" / "model").mkdir(parents=True)
    config = json.dumps({"keras_bert": {"max_seq_length": 64, "names": ["c", "d"]}})
    (tmp_path / "out" / "model" / "config.json").write_text(config)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "config.json").write_text(config)
    for folder in ("out", "out/model"):
        found, _ = flags_of(SETTINGS, f"--init_checkpoint={folder}")
        assert (found.max_seq_length, found.column, found.names) == (64, "b", ["c", "d"])
    found, _ = flags_of(SETTINGS, "--init_checkpoint=copy")
    assert (found.max_seq_length, found.column, found.names) == (64, "text", ["c", "d"])


def test_explicit_flags_are_kept_even_if_equal_to_the_default(flags_of, caplog):
    given = ["--max_seq_length=128", "--noby_pair", "--threshold=0", "--column=text", "--names=a"]
    with caplog.at_level("INFO", "absl"):
        found, _ = flags_of(SETTINGS, *given)
    assert found.max_seq_length == 128
    assert found.by_pair is False
    assert (found.threshold, found.column, found.names) == (0, "text", ["a"])
    assert not caplog.records


def test_no_settings_are_taken_when_training(flags_of):
    found, run = flags_of(SETTINGS, "--do_train")
    assert run is None
    assert found.max_seq_length == 128


def test_invalid_setting_in_run_json_is_reported_by_name(flags_of):
    with pytest.raises(InputError, match=r"run.json: kind is 'c'; expected one of a, b"):
        flags_of({"kind": "c"})
