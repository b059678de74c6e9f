"""A run's folder: start, continue, refuse, nothing to do."""

import json

import pytest

from keras_bert.errors import InputError
from keras_bert.training.run_directory import open_run, read_json, write_json

SETTINGS = {"learning_rate": 1e-4, "files": ["a", "b"]}


def test_a_new_run_writes_its_settings_and_versions(tmp_path):
    assert open_run(tmp_path / "run", SETTINGS) is False
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["settings"] == SETTINGS
    assert content["versions"]["keras"].startswith("3.")


def test_the_same_settings_continue(tmp_path):
    open_run(tmp_path, SETTINGS)
    assert open_run(tmp_path, SETTINGS) is False


def test_a_run_with_results_is_finished(tmp_path):
    open_run(tmp_path, SETTINGS)
    write_json(tmp_path / "results.json", {"loss": 1.0})
    assert open_run(tmp_path, SETTINGS) is True


def test_changed_settings_are_refused_with_every_difference(tmp_path):
    open_run(tmp_path, SETTINGS)
    with pytest.raises(
        InputError, match=r"files was \[.*\] and is now null; learning_rate was 0.0001 and is now 1"
    ):
        open_run(tmp_path, {"learning_rate": 1})


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file.*cannot be written"):
        open_run(tmp_path / "file" / "run", SETTINGS)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not JSON"), ("[1]", "holds a list, not a JSON object")]
)
def test_a_broken_file_is_named(tmp_path, content, message):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=rf"run\.json: {message}"):
        read_json(tmp_path / "run.json")
