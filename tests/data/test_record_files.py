"""Finding record files: what a flag's value names, and what a manifest must say."""

import json
import os

import pytest

from data_tools.settings import Settings
from keras_bert.common.errors import InputError
from keras_bert.data.pretraining_records import find_records
from keras_bert.data.record_files import FORMAT, VERSION, RecordFiles, find_record_files

SHARD = {"file": "b.tfrecord", "rows": 3, "bytes": 9, "sha256": "00"}
MANIFEST = {
    "format": FORMAT,
    "version": VERSION,
    "settings": Settings().to_dict(),
    "vocab": {"file": "vocab.txt", "sha256": "00"},
    "inputs": [],
    "counts": {},
    "shards": [SHARD],
}


def make(folder, manifest=None):
    """A folder with two record files, of which the manifest, if there is one, lists the second."""
    folder.mkdir(parents=True)
    for name in ("a.tfrecord", "b.tfrecord", "vocab.txt"):
        (folder / name).touch()
    if manifest:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_folder_has_what_its_manifest_lists_and_strangers_on_demand(tmp_path):
    folder = str(make(tmp_path / "a", MANIFEST))
    assert find_record_files(folder) == [RecordFiles(folder, ["b.tfrecord"], MANIFEST)]
    (found,) = find_record_files(folder, strangers=True)
    assert found.names == ["b.tfrecord", "a.tfrecord"]
    assert found.vocab_file() == os.path.join(folder, "vocab.txt")


def test_a_glob_leaves_out_what_holds_no_records(tmp_path):
    folder = make(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    (found,) = find_record_files(f"{folder}/*")
    assert found.names == ["a.tfrecord", "b.tfrecord"]
    assert find_record_files(f"{tmp_path}/*") == [found]


@pytest.mark.parametrize("name", ["a,b.tfrecord", "a[1].tfrecord"])
def test_a_name_may_hold_what_parts_or_matches_names(tmp_path, write_records, name):
    """In training as in inspection."""
    path = str(write_records(tmp_path / name, 4))
    assert [found.paths() for found in find_record_files(path)] == [[path]]
    assert find_records(path).counts == [4]


def test_a_folder_that_is_given_in_several_ways_counts_once(tmp_path, write_records, monkeypatch):
    """In training, too: it would see its records twice as often as others."""
    write_records(tmp_path / "k1" / "a.tfrecord", 4)
    monkeypatch.chdir(tmp_path)
    data = find_records(f"k1,k1/,./k1,{tmp_path}/k1,k1/a.tfrecord")
    assert (data.files, data.counts) == (["k1/a.tfrecord"], [4])


@pytest.mark.parametrize(
    ("value", "expected"),
    [("{}/nothing*", "--eval_file: no record files match '.*nothing"), (" , ", "names no files")],
)
def test_what_names_nothing_is_refused(tmp_path, value, expected):
    with pytest.raises(InputError, match=expected):
        find_record_files(value.format(tmp_path), "eval_file")


@pytest.mark.parametrize("name", list(MANIFEST))
def test_a_manifest_without_what_readers_ask_of_it_is_refused(tmp_path, name):
    manifest = {key: value for key, value in MANIFEST.items() if key != name}
    folder = make(tmp_path / "a", manifest)
    with pytest.raises(InputError, match=rf"a/manifest\.json: not a manifest .*{name}"):
        find_record_files(str(folder))


@pytest.mark.parametrize("change", [{"settings": {}}, {"shards": [SHARD | {"rows": "3"}]}])
def test_a_manifest_of_another_form_is_refused(tmp_path, change):
    folder = make(tmp_path / "a", MANIFEST | change)
    with pytest.raises(InputError, match=r"a/manifest\.json: not a manifest"):
        find_record_files(str(folder))


@pytest.mark.parametrize("change", [{"version": VERSION + 1}, {"format": "theirs"}])
def test_a_manifest_of_another_version_is_refused(tmp_path, change):
    folder = make(tmp_path / "a", MANIFEST | change)
    with pytest.raises(
        InputError, match=r"expected format and version \('keras_bert.pretraining', "
    ):
        find_record_files(str(folder))
