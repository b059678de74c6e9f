"""Run directories: start, resume, reject, and detect a finished run."""

import json
import os

import pytest
import tensorflow as tf

import keras_bert
from keras_bert.errors import InputError
from keras_bert.files import write_json
from keras_bert.training import run_folder
from keras_bert.training.run_folder import is_finished, running

SETTINGS = {"learning_rate": 1e-4, "files": ["a", "b"]}
ONE = tf.distribute.get_strategy()


def start(folder):
    with running(folder, SETTINGS, ONE):
        pass


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

    monkeypatch.setattr(run_folder, "write_json", write_late)
    start(tmp_path)


def test_resume_with_other_versions_warns_with_both(tmp_path, caplog):
    start(tmp_path)
    path = tmp_path / "run.json"
    record = json.loads(path.read_text())
    older = {"tensorflow": "2.20.0", "keras_bert": "0.1.0"}
    write_json(path, record | {"versions": record["versions"] | older})
    start(tmp_path)
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert f"keras_bert 0.1.0 and {keras_bert.__version__}" in warning
    assert f"tensorflow 2.20.0 and {tf.__version__}" in warning
    assert "numpy" not in warning


@pytest.mark.parametrize("versions", [{"jax": "0.1"}, {}])
def test_versions_that_do_not_matter_or_are_not_recorded_give_no_warning(
    tmp_path, caplog, versions
):
    """TensorFlow runs do not use JAX, even if it is installed."""
    start(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    versions = versions and record["versions"] | versions
    write_json(tmp_path / "run.json", record | {"versions": versions})
    start(tmp_path)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_setting_that_an_earlier_version_did_not_have_was_off(tmp_path):
    write_json(tmp_path / "run.json", {"settings": {"rate": 1}})
    assert is_finished(tmp_path, {"rate": 1, "bias_correction": False}, ONE) is False
    with pytest.raises(InputError, match="bias_correction was null and is now true"):
        is_finished(tmp_path, {"rate": 1, "bias_correction": True}, ONE)


def test_changed_settings_are_rejected_with_all_differences(tmp_path):
    start(tmp_path)
    with pytest.raises(
        InputError, match=r"files was \[.*\] and is now null; learning_rate was 0.0001 and is now 1"
    ):
        is_finished(tmp_path, {"learning_rate": 1}, ONE)


def test_run_of_another_version_with_other_settings_is_named_with_the_version(tmp_path):
    old = {"settings": {"files": ["a"] * 1000}, "versions": {"keras_bert": "0.1.0"}}
    write_json(tmp_path / "run.json", old)
    with pytest.raises(InputError, match=r"contains a run of keras_bert 0\.1\.0 with ") as caught:
        is_finished(tmp_path, SETTINGS, ONE)
    assert f"resume it (with 0.1.0, not {keras_bert.__version__}), or" in str(caught.value)
    assert len(str(caught.value)) < 800


def fail(folder, write=lambda: None):
    def run():
        with running(folder, SETTINGS, ONE):
            write()
            raise InputError("invalid")

    with pytest.raises(InputError, match="invalid"):
        run()


def test_run_that_fails_before_it_logs_or_saves_anything_leaves_nothing(tmp_path):
    """Otherwise the corrected command would not match run.json."""
    folder = tmp_path / "out"

    def write():
        (folder / "tensorboard").mkdir()
        (folder / "tensorboard" / "events").touch()
        (folder / "checkpoints").mkdir()

    fail(folder, write)
    assert not folder.exists()
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    fail(folder, write)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "best", "checkpoints/step-00000001"])
def test_failed_run_that_logged_or_saved_something_is_kept(tmp_path, name):
    def write():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("content")

    fail(tmp_path, write)
    assert (tmp_path / name).exists()
    assert (tmp_path / "run.json").exists()


def test_interrupt_names_the_last_checkpoint_of_the_run_or_of_its_parts(tmp_path):
    for index, name in enumerate(("seed-1/checkpoints/step-00000009", "seed-2/checkpoints/step-7")):
        (tmp_path / name).mkdir(parents=True)
        os.utime(tmp_path / name, (index, index))
    with pytest.raises(KeyboardInterrupt) as caught, running(tmp_path, SETTINGS, ONE):
        raise KeyboardInterrupt
    folder = tmp_path / "seed-2" / "checkpoints"
    assert str(caught.value) == f"the checkpoint of step 7 is saved in {folder}"
    with pytest.raises(KeyboardInterrupt, match="stopped"), running(tmp_path, SETTINGS, ONE):
        raise KeyboardInterrupt("stopped after step 8")


def test_interrupted_or_resumed_run_that_fails_is_kept(tmp_path):
    with pytest.raises(KeyboardInterrupt), running(tmp_path, SETTINGS, ONE):
        raise KeyboardInterrupt
    assert (tmp_path / "run.json").exists()
    fail(tmp_path)
    assert (tmp_path / "run.json").exists()
