"""Tests the data tool on a disk that is full, and that it flushes files before they are final."""

import json
import os

import pytest

from data_tools.building import shards
from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.settings import Settings
from keras_bert.common.errors import InputError
from tests.disk import unsafe_renames

SMALL = Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=10, num_shards=4)
BUILD = """
import json
from data_tools.create_pretraining_data import create_pretraining_data
from data_tools.settings import Settings
files = json.loads({files!r})
settings = Settings(max_seq_length=32, max_predictions_per_seq=5, dupe_factor=2, num_shards=2)
create_pretraining_data(**files, settings=settings, num_workers=1)
"""


@pytest.mark.parametrize("free", [0, 8192])
def test_shard_on_a_full_disk_is_an_error_and_leaves_no_file(small_disk, files, corpus, free):
    documents = [text.encode().split(b"\n") for text in corpus(30).strip().split("\n\n")]
    path = small_disk.path / "records-00000-of-00004.tfrecord"

    def write():
        shards.write_shard_of(documents, 0, files["vocab_file"], SMALL, str(path))

    small_disk.fill(free)
    with pytest.raises(InputError, match=r"of-00004\.tfrecord: cannot be written \(.*[Nn]o space"):
        write()
    assert os.listdir(small_disk.path) == []
    small_disk.release()
    write()
    assert path.stat().st_size > 8192


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 1 << 14, 1 << 18])
def test_records_on_a_full_disk_are_an_error_and_the_same_command_completes_them(
    small_disk, files, contents, free
):
    """The disk is full from the start, or while the temporary files or the shards are written."""
    create_pretraining_data(**files, settings=SMALL, num_workers=1)
    expected = contents(files["output_dir"])
    folder = small_disk.path / "records"
    small_disk.fill(free)
    with pytest.raises(InputError, match=r"cannot be written \(.*[Nn]o space left"):
        create_pretraining_data(
            **files | {"output_dir": str(folder)}, settings=SMALL, num_workers=1
        )
    assert not (folder / "manifest.json").exists()
    small_disk.release()
    create_pretraining_data(**files | {"output_dir": str(folder)}, settings=SMALL, num_workers=1)
    assert contents(folder) == expected


@pytest.mark.slow
def test_records_are_flushed_before_and_after_their_renames(tmp_path, files, trace_files):
    folder = tmp_path / "out"
    calls = trace_files(BUILD.format(files=json.dumps(files)), folder)
    renamed = {paths[1] for name, paths in calls if name == "rename"}
    names = [f"records-0000{index}-of-00002.tfrecord" for index in (0, 1)]
    assert {str(folder / name) for name in [*names, "manifest.json", "vocab.txt"]} <= renamed
    assert unsafe_renames(calls) == []
