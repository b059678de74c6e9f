"""The highest version that loads is served; a new version replaces it, a broken one does not."""

import gc
import os
import shutil
import types
import weakref
from pathlib import Path

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.export.saved_model import WARMUP_FILE, write_warmup_requests
from keras_bert.server import versions as versions_module
from keras_bert.server.protocol import RestError
from keras_bert.server.versions import Version, Versions


def write(folder: Path, content: object) -> None:
    """Writes a version whose model is a number; others cannot be loaded."""
    folder.mkdir(exist_ok=True)
    (folder / "saved_model.pb").write_text(str(content))


@pytest.fixture
def versions(tmp_path, monkeypatch):
    """Returns the versions of a folder with version 1, which has the content 1."""

    class Loaded:
        engine = types.SimpleNamespace(name="tensorflow", precision="float32")

        def __init__(self, folder: Path, *engine: str):
            self.number = int(folder.name)
            self.content = int((folder / "saved_model.pb").read_text())

    monkeypatch.setattr(versions_module, "Version", Loaded)
    write(tmp_path / "1", 1)
    versions = Versions(tmp_path)
    versions.start()
    return versions


def look_twice(versions: Versions) -> bool:
    return versions.refresh() or versions.refresh()


def test_highest_version_that_loads_is_served_first(versions, caplog):
    folder = versions.folder
    for number, content in ((12, 3), (9, 2), (13, "broken")):
        write(folder / str(number), content)
    (folder / "notes").mkdir()
    versions = Versions(folder)
    versions.start()
    assert (versions.current.number, versions.current.content) == (12, 3)
    assert f"Cannot load version 13 of {folder}: invalid literal" in caplog.text


def test_new_version_replaces_the_old_one(versions):
    old = weakref.ref(versions.current)
    write(versions.folder / "2", 2)
    assert not versions.refresh(), "seen once: it may still be written"
    assert versions.refresh()
    assert versions.current.content == 2
    assert versions.states() == {2: ("AVAILABLE", ""), 1: ("END", "")}
    gc.collect()
    assert old() is None
    assert not versions.refresh()


def test_broken_version_is_loaded_again_when_its_files_change(versions, monkeypatch):
    write(versions.folder / "2", "broken")
    assert not look_twice(versions)
    assert versions.current.number == 1
    assert versions.states()[2] == (
        "END",
        "The version cannot be loaded; the log of the server has the details",
    )
    with monkeypatch.context() as context:
        context.setattr(versions_module, "Version", None)
        assert not look_twice(versions)
    write(versions.folder / "2", 2)
    assert look_twice(versions)
    assert versions.current.content == 2


def test_deleted_version_is_served_until_another_is_available(versions):
    write(versions.folder / "2", 2)
    assert look_twice(versions)
    shutil.rmtree(versions.folder / "2")
    assert look_twice(versions)
    assert versions.current.content == 1
    shutil.rmtree(versions.folder)
    assert not look_twice(versions)
    assert versions.current.content == 1
    versions.folder.mkdir()
    write(versions.folder / "2", 3)
    assert look_twice(versions)
    assert versions.current.content == 3


def test_replaced_model_of_the_same_version_is_reloaded(versions):
    before, model = versions.current, versions.folder / "1" / "saved_model.pb"
    original = versions.folder / "original.pb"
    original.write_text("2")  # As large as the model, and as old.
    os.utime(original, ns=(0, model.stat().st_mtime_ns))
    original.replace(model)
    assert not versions.refresh(), "seen once: it may still be written"
    assert versions.refresh()
    assert versions.current is not before
    assert versions.current.content == 2
    # After its files are replaced by a broken model, the loaded model is served until they are
    # fixed.
    model.rename(original)
    write(versions.folder / "1", "broken")
    assert not look_twice(versions)
    state, error = versions.states()[1]
    assert state == "AVAILABLE"
    assert error
    assert versions.current.content == 2
    model.unlink()
    original.rename(model)
    assert not versions.refresh()
    assert versions.states() == {1: ("AVAILABLE", "")}
    write(versions.folder / "1", 333)
    assert look_twice(versions)
    assert versions.current.content == 333
    assert versions.states() == {1: ("AVAILABLE", "")}


def test_folder_without_a_loadable_version_is_rejected(versions, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="found no version; expected"):
        Versions(tmp_path / "1").start()
    write(tmp_path / "1", "broken")
    with pytest.raises(InputError, match="cannot load version 1: invalid literal"):
        Versions(tmp_path).start()

    def deny(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(versions_module, "describe_files", deny)
    with pytest.raises(InputError, match=r"--export_dir=.*: Permission denied"):
        Versions(tmp_path).start()


@pytest.mark.slow
def test_loaded_version_has_its_signatures_and_runs_its_warm_up(save_model, tmp_path):
    folder = save_model(tmp_path / "1", 7)
    write_warmup_requests(folder, "model", {"serving_default": {"text": np.array(["a", "b"])}})
    version = Version(folder)
    assert version.signatures["serving_default"]["inputs"] == {"text": ["string", [-1]]}
    text = version.signature_def["serving_default"]["inputs"]["text"]
    assert text["dtype"] == "DT_STRING"
    assert text["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    outputs = version.run("serving_default", {"text": np.array([b"x"], object)})
    assert outputs["version"].tolist() == [7]
    # A model that fails on its own warm-up is not served.
    (folder / WARMUP_FILE).unlink()
    write_warmup_requests(folder, "model", {"serving_default": {"text": np.array(["boom"])}})
    with pytest.raises(RestError, match=r"^a boom$"):
        Version(folder)
    (folder / "export.json").write_text("[1]")
    with pytest.raises(InputError, match=r"export\.json: contains a list"):
        Version(folder)
