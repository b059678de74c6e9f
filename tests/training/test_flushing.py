"""Traces the system calls of a checkpoint: everything is flushed before its name is final."""

import pytest

from tests.disk import unsafe_renames

SAVE = """
from pathlib import Path
from tests.training.test_checkpoint import save
for step in (1, 2):
    save(Path({folder!r}), step, float(step))
"""

REPLACE = """
from keras_bert import files
if {in_two_steps}:
    files._exchange = lambda *_: False  # As on a file system without RENAME_EXCHANGE.
for text in ("old", "new"):
    with files.atomic_path({folder!r} + "/model") as partial:
        partial.mkdir()
        (partial / "weights").write_text(text)
"""


@pytest.mark.slow
@pytest.mark.parametrize("in_two_steps", [False, True])
def test_replaced_folder_is_deleted_after_the_new_name_is_flushed(
    tmp_path, trace_files, in_two_steps
):
    folder = tmp_path / "run"
    calls = trace_files(REPLACE.format(folder=str(folder), in_two_steps=in_two_steps), folder)
    assert unsafe_renames(calls) == []
    deleted = [paths[0] for name, paths in calls if name == "delete"]
    replaced = ".model.replaced" if in_two_steps else ".partial"
    assert any(path.endswith(f"{replaced}/weights") for path in deleted)
    assert unsafe_renames([call for call in calls if call != ("fsync", [str(folder)])])


@pytest.mark.slow
def test_checkpoint_is_flushed_before_and_after_its_rename(tmp_path, trace_files):
    folder = tmp_path / "checkpoints"
    calls = trace_files(SAVE.format(folder=str(folder)), folder)
    renamed = [paths[1] for name, paths in calls if name == "rename"]
    assert {str(folder / f"step-0000000{step}") for step in (1, 2)} <= {*renamed}
    assert unsafe_renames(calls) == []


def test_missing_flushes_are_found():
    flushed_late = [("write", ["/a"]), ("rename", ["/a", "/d/b"]), ("fsync", ["/d/b"])]
    assert unsafe_renames(flushed_late) == [
        "/a is renamed to /d/b, but not flushed",
        "/a itself is not flushed before it becomes /d/b",
        "the name /d/b is not flushed",
    ]
    folder = [("write", ["/p/a"]), ("fsync", ["/p/a"]), ("rename", ["/p", "/d/b"])]
    assert unsafe_renames([*folder, ("fsync", ["/d"])]) == [
        "/p itself is not flushed before it becomes /d/b"
    ]
    again = [("write", ["/p/a"]), ("fsync", ["/p"]), ("rename", ["/p", "/d/b"]), ("fsync", ["/d"])]
    assert unsafe_renames([*folder[:2], *again]) == ["/p/a is renamed to /d/b, but not flushed"]
    safe = [*folder[:2], ("fsync", ["/p"]), folder[2], ("fsync", ["/d"])]
    assert unsafe_renames(safe) == []
    assert unsafe_renames([*safe, ("rename", ["/d/b", "/e/b"]), ("fsync", ["/e"])]) == []
    assert unsafe_renames([*safe, ("delete", ["/d/c/file"])]) == []
    assert unsafe_renames([*safe[:-1], ("delete", ["/d/c/file"]), safe[-1]]) == [
        "/d/c/file is deleted before the name /d/b is flushed"
    ]


def test_names_in_a_partial_folder_are_not_final_but_must_be_flushed_with_it():
    """safetensors renames its file itself."""
    inner = [("write", ["/d/.b.partial/x"]), ("rename", ["/d/.b.partial/x", "/d/.b.partial/a"])]
    outer = [("rename", ["/d/.b.partial", "/d/b"]), ("fsync", ["/d"])]
    flushes = [("fsync", ["/d/.b.partial/a"]), ("fsync", ["/d/.b.partial"])]
    assert unsafe_renames([*inner, *flushes, *outer]) == []
    assert unsafe_renames([*inner, *flushes[:1], *outer]) == [
        "/d/.b.partial itself is not flushed before it becomes /d/b"
    ]
    assert unsafe_renames([*inner, *flushes[1:], *outer]) == [
        "/d/.b.partial/a is renamed to /d/b, but not flushed"
    ]
