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
