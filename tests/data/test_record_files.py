"""Tests of finding record files by a flag's value, and of the required fields of a manifest."""

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
    """Creates a folder with two record files. The manifest, if given, lists only the second."""
    folder.mkdir(parents=True)
    for name in ("a.tfrecord", "b.tfrecord", "vocab.txt"):
        (folder / name).touch()
    if manifest:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_folder_gives_the_files_in_its_manifest_and_others_on_request(tmp_path):
    folder = str(make(tmp_path / "a", MANIFEST))
    assert find_record_files(folder) == [RecordFiles(folder, ["b.tfrecord"], MANIFEST)]
    (found,) = find_record_files(folder, include_unlisted=True)
    assert found.names == ["b.tfrecord", "a.tfrecord"]
    assert found.vocab_file() == os.path.join(folder, "vocab.txt")


def test_glob_skips_files_and_folders_without_records(tmp_path):
    folder = make(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    (found,) = find_record_files(f"{folder}/*")
    assert found.names == ["a.tfrecord", "b.tfrecord"]
    assert find_record_files(f"{tmp_path}/*") == [found]


@pytest.mark.parametrize("name", ["a,b.tfrecord", "a[1].tfrecord"])
def test_file_name_may_contain_a_comma_or_a_bracket(tmp_path, write_records, name):
    """Covers training and inspection."""
    path = str(write_records(tmp_path / name, 4))
    assert [found.paths() for found in find_record_files(path)] == [[path]]
    assert find_records(path).counts == [4]


def test_folder_given_several_times_counts_once(tmp_path, write_records, monkeypatch):
    """Otherwise training would read its records more often than those of other folders."""
    write_records(tmp_path / "k1" / "a.tfrecord", 4)
    monkeypatch.chdir(tmp_path)
    data = find_records(f"k1,k1/,./k1,{tmp_path}/k1,k1/a.tfrecord")
    assert (data.files, data.counts) == (["k1/a.tfrecord"], [4])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{}/nothing*", "--eval_file: no record files match '.*nothing"),
        (" , ", "contains no paths"),
    ],
)
def test_pattern_without_matching_files_is_rejected(tmp_path, value, expected):
    with pytest.raises(InputError, match=expected):
        find_record_files(value.format(tmp_path), "eval_file")


@pytest.mark.parametrize("name", list(MANIFEST))
def test_manifest_without_a_required_field_is_rejected(tmp_path, name):
    manifest = {key: value for key, value in MANIFEST.items() if key != name}
    folder = make(tmp_path / "a", manifest)
    with pytest.raises(InputError, match=rf"a/manifest\.json: not a manifest .*{name}"):
        find_record_files(str(folder))


@pytest.mark.parametrize("change", [{"settings": {}}, {"shards": [SHARD | {"rows": "3"}]}])
def test_manifest_with_invalid_fields_is_rejected(tmp_path, change):
    folder = make(tmp_path / "a", MANIFEST | change)
    with pytest.raises(InputError, match=r"a/manifest\.json: not a manifest"):
        find_record_files(str(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"next_sentence": 0}, "next_sentence is 0; expected one of random, order, none"),
        ({"next_sentence": []}, "next_sentence is .*; expected one of"),
        ({"dynamic": "no"}, "dynamic is 'no'; expected a value of type bool"),
        ({"ngram": True}, "ngram is True; expected a value of type int"),
        ({"masked_lm_prob": None}, "masked_lm_prob is None; expected a value of type float"),
    ],
    ids=str,
)
def test_manifest_with_an_invalid_setting_is_rejected(tmp_path, change, message):
    settings = MANIFEST["settings"] | change
    folder = make(tmp_path / "a", MANIFEST | {"settings": settings})
    with pytest.raises(InputError, match=rf"a/manifest\.json: {message}"):
        find_record_files(str(folder))


@pytest.mark.parametrize("change", [{"version": VERSION + 1}, {"format": "theirs"}])
def test_manifest_of_another_version_is_rejected(tmp_path, change):
    folder = make(tmp_path / "a", MANIFEST | change)
    with pytest.raises(
        InputError, match=r"expected format and version \('keras_bert.pretraining', "
    ):
        find_record_files(str(folder))
