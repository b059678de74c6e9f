"""The highest version that loads is served; a new version replaces it, a broken one does not."""

import gc
import os
import shutil
import weakref

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.export.version_folders import describe_files
from keras_bert.server.versions import Version, Versions
from tests.export.conftest import INSTALLED, export  # noqa: F401

pytestmark = pytest.mark.slow  # Loads many SavedModels.


def served(versions: Versions) -> int:
    """Returns the version number in the output of the model."""
    text = np.array([b"x"], object)
    return int(versions.current.run("serving_default", {"text": text})["version"][0])


def look_twice(versions: Versions) -> bool:
    return versions.refresh() or versions.refresh()


@pytest.fixture(scope="module")
def saved(save_model, tmp_path_factory):
    """Saves versions 1, 2 and 3, which tests copy."""
    folder = tmp_path_factory.mktemp("saved")
    return {number: save_model(folder / str(number), number) for number in (1, 2, 3)}


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "1")
    return tmp_path


@pytest.fixture
def versions(folder):
    versions = Versions(folder)
    versions.start()
    return versions


def test_version_has_its_signatures(folder):
    version = Version(folder / "1")
    assert version.signatures["serving_default"]["inputs"] == {"text": ["string", [-1]]}
    text = version.signature_def["serving_default"]["inputs"]["text"]
    assert text["dtype"] == "DT_STRING"
    assert text["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}


def test_highest_version_that_loads_is_served_first(folder, saved, caplog):
    shutil.copytree(saved[3], folder / "12")
    shutil.copytree(saved[2], folder / "9")
    (folder / "notes").mkdir()
    shutil.copytree(saved[2], folder / "13")
    (folder / "13" / "export.json").write_text("[1]")
    versions = Versions(folder)
    versions.start()
    assert versions.current.number == 12
    assert served(versions) == 3
    assert f"Cannot load version 13 of {folder}: {folder}/13/export.json: " in caplog.text


def test_new_version_replaces_the_old_one(versions, folder, saved):
    old = weakref.ref(versions.current)
    shutil.copytree(saved[2], folder / "2")
    assert not versions.refresh(), "seen once: it may still be written"
    assert versions.refresh()
    assert served(versions) == 2
    assert versions.states() == {2: ("AVAILABLE", ""), 1: ("END", "")}
    gc.collect()
    assert old() is None
    assert not versions.refresh()


def test_incomplete_version_is_not_served_until_it_is_complete(versions, folder, saved):
    shutil.copytree(saved[2], folder / "2")
    data = next((folder / "2" / "variables").glob("*.data*"))
    content = data.read_bytes()
    data.unlink()
    assert not look_twice(versions)
    assert served(versions) == 1
    assert versions.states()[2][0] == "END"
    assert versions.states()[2][1]
    data.write_bytes(content)
    assert look_twice(versions)
    assert served(versions) == 2


def test_broken_version_is_loaded_only_once(versions, folder, monkeypatch):
    (folder / "2").mkdir()
    (folder / "2" / "saved_model.pb").write_bytes(b"not a model")
    assert not look_twice(versions)
    monkeypatch.setattr("keras_bert.server.versions.Version", None)
    assert not look_twice(versions)
    assert versions.states()[2][0] == "END"
    assert versions.current.number == 1


def test_deleted_version_is_served_until_another_is_available(versions, folder, saved):
    shutil.rmtree(folder / "1")
    assert not look_twice(versions)
    assert served(versions) == 1
    shutil.rmtree(folder)
    assert not look_twice(versions)
    folder.mkdir()
    shutil.copytree(saved[2], folder / "2")
    assert look_twice(versions)
    assert served(versions) == 2


def test_replaced_model_of_the_same_version_is_reloaded(versions, folder, saved):
    before = versions.current
    assert not look_twice(versions)
    (folder / "1").rename(folder / "old")
    shutil.copytree(saved[2], folder / "1")
    assert not versions.refresh(), "seen once: it may still be written"
    assert versions.refresh()
    assert versions.current is not before
    assert served(versions) == 2
    assert not look_twice(versions)
    # After its files are replaced by a broken model, the loaded model is served until they are
    # fixed.
    (folder / "1" / "saved_model.pb").write_bytes(b"not a model")
    assert not look_twice(versions)
    state, error = versions.states()[1]
    assert state == "AVAILABLE"
    assert error
    assert served(versions) == 2
    shutil.rmtree(folder / "1")
    assert not look_twice(versions)
    shutil.copytree(saved[3], folder / "1")
    assert look_twice(versions)
    assert served(versions) == 3
    assert versions.states() == {1: ("AVAILABLE", "")}


def test_detects_other_files_with_the_same_size_and_time(folder, saved):
    def same_time(path) -> None:
        for file in path.rglob("*"):
            os.utime(file, (0, 0))

    same_time(folder / "1")
    before = describe_files(folder / "1")
    (folder / "1").rename(folder / "old")
    shutil.copytree(saved[1], folder / "1")
    same_time(folder / "1")
    assert describe_files(folder / "1") != before


def test_deleting_the_highest_version_serves_a_lower_one(versions, folder, saved):
    shutil.copytree(saved[2], folder / "2")
    assert look_twice(versions)
    shutil.rmtree(folder / "2")
    assert look_twice(versions)
    assert served(versions) == 1


@pytest.mark.parametrize("engine", INSTALLED)
def test_engine_runs_the_model_and_is_logged(engine, export, caplog):  # noqa: F811
    folder = export("pair").folder.parent
    text = np.array([b"the cat", b""], object)
    answers = []
    with caplog.at_level("INFO", "absl"):
        for name in ("tensorflow", engine):
            versions = Versions(folder, name)
            versions.start()
            inputs = {"text": text, "text_pair": text}
            answers.append(versions.current.run("serving_default", inputs))
            assert f"Serving version 1 of {folder} on {name}, float32" in caplog.text
    assert answers[0]["label"].tolist() == answers[1]["label"].tolist()
    np.testing.assert_allclose(answers[0]["logits"], answers[1]["logits"], atol=1e-3)


def test_folder_without_a_loadable_version_is_rejected(tmp_path):
    with pytest.raises(InputError, match="found no version; expected"):
        Versions(tmp_path).start()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"not a model")
    with pytest.raises(InputError, match="version 1: "):
        Versions(tmp_path).start()


def test_unreadable_folder_is_rejected(folder, monkeypatch):
    def deny(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("keras_bert.server.versions.describe_files", deny)
    with pytest.raises(InputError, match=r"--export_dir=.*: Permission denied"):
        Versions(folder).start()


def test_warm_up_requests_are_run(folder):
    prediction_log = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")

    def write(signature: str, text: list[str]) -> None:
        log = prediction_log.PredictionLog()
        request = log.predict_log.request
        request.model_spec.signature_name = signature
        request.inputs["text"].CopyFrom(tf.make_tensor_proto(text))
        path = folder / "1" / "assets.extra"
        path.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(path / "tf_serving_warmup_requests")) as writer:
            writer.write(log.SerializeToString())

    write("serving_default", ["a", "b"])
    Version(folder / "1")
    # A model that fails on its own warm-up is not served.
    write("", ["boom"])
    with pytest.raises(Exception, match="a boom"):
        Version(folder / "1")
