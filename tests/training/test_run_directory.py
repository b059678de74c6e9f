"""Run directories: start, resume, reject, and detect a finished run."""

import json

import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.common.files import write_json
from keras_bert.training import run_directory
from keras_bert.training.run_directory import is_finished, running

SETTINGS = {"learning_rate": 1e-4, "files": ["a", "b"]}
ONE = tf.distribute.get_strategy()


def start(folder):
    with running(folder, SETTINGS, ONE):
        pass


def test_folder_in_use_is_rejected_for_other_processes(tmp_path):
    with (
        running(tmp_path, SETTINGS, ONE),
        pytest.raises(InputError, match="another process is using this folder"),
        running(tmp_path, SETTINGS, ONE),
    ):
        pass
    start(tmp_path)


def test_one_of_two_runs_that_start_together_is_rejected(tmp_path, monkeypatch):
    """The second run starts while the first one writes run.json."""

    def write_late(path, content):
        monkeypatch.undo()
        with (
            pytest.raises(InputError, match="another process is using this folder"),
            running(tmp_path, SETTINGS, ONE),
        ):
            pass
        write_json(path, content)

    monkeypatch.setattr(run_directory, "write_json", write_late)
    start(tmp_path)


def test_run_started_meanwhile_with_other_settings_is_detected(tmp_path):
    assert is_finished(tmp_path, {"learning_rate": 1}, ONE) is False
    start(tmp_path)
    with (
        pytest.raises(InputError, match=r"learning_rate was 0\.0001 and is now 1"),
        running(tmp_path, {"learning_rate": 1}, ONE),
    ):
        pass


def test_lock_of_a_killed_run_is_taken_over_and_removed(tmp_path):
    (tmp_path / ".lock").touch()
    start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_new_run_writes_its_settings_and_versions(tmp_path):
    assert is_finished(tmp_path / "run", SETTINGS, ONE) is False
    start(tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    assert content["settings"] == SETTINGS
    assert content["versions"]["keras"].startswith("3.")


def test_same_settings_resume_the_run(tmp_path):
    start(tmp_path)
    assert is_finished(tmp_path, SETTINGS, ONE) is False


def test_run_with_results_is_finished(tmp_path):
    start(tmp_path)
    write_json(tmp_path / "results.json", {"loss": 1.0})
    assert is_finished(tmp_path, SETTINGS, ONE) is True


def test_changed_settings_are_rejected_with_all_differences(tmp_path):
    start(tmp_path)
    with pytest.raises(
        InputError, match=r"files was \[.*\] and is now null; learning_rate was 0.0001 and is now 1"
    ):
        is_finished(tmp_path, {"learning_rate": 1}, ONE)


def test_changed_nested_setting_is_named(tmp_path):
    write_json(tmp_path / "run.json", {"settings": {"phase-1": {"rate": 1, "flags": {"a": 2}}}})
    assert is_finished(tmp_path, {"phase-1": {"rate": 1, "flags": {"a": 2}}}, ONE) is False
    with pytest.raises(
        InputError, match=r"settings: phase-1\.flags\.a was 2 and is now 3; expected"
    ):
        is_finished(tmp_path, {"phase-1": {"rate": 1, "flags": {"a": 3}}}, ONE)


def test_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file.*cannot be written"):
        start(tmp_path / "file" / "run")
