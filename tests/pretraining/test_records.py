"""Record files: selection, manifests and shapes; the damaged record of an error."""

import json

import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.pretraining import records
from keras_bert.pretraining.record_files import VERSION, find_record_files
from keras_bert.pretraining.records import explain_record_errors, find_records, training_batches
from tests.pretraining.conftest import edit_manifest

# --- files ---


def test_folder_gives_the_files_in_its_manifest_and_others_on_request(tmp_path, write_dataset):
    folder = write_dataset(tmp_path / "a")
    (folder / "a.tfrecord").touch()
    manifest = json.loads((folder / "manifest.json").read_text())
    shards = [shard["file"] for shard in manifest["shards"]]
    assert find_record_files(str(folder)) == [(str(folder), shards, manifest)]
    ((_, names, _),) = find_record_files(str(folder), include_unlisted=True)
    assert names == [*shards, "a.tfrecord"]


def test_glob_skips_files_and_folders_without_records(tmp_path):
    for folder in ("a", "empty"):
        (tmp_path / folder).mkdir()
    for name in ("a.tfrecord", "b.tfrecord", "vocab.txt"):
        (tmp_path / "a" / name).touch()
    files = [(str(tmp_path / "a"), ["a.tfrecord", "b.tfrecord"], None)]
    assert find_record_files(f"{tmp_path}/a/*") == files
    assert find_record_files(f"{tmp_path}/*") == files


@pytest.mark.parametrize("name", ["a,b.tfrecord", "a[1].tfrecord"])
def test_file_name_may_contain_a_comma_or_a_bracket(tmp_path, write_records, name):
    path = str(write_records(tmp_path / name, 4))
    data = find_records(path)
    assert (data.files, data.counts) == ([path], [4])


def test_folder_given_several_times_counts_once(tmp_path, write_records, monkeypatch):
    """Otherwise training would read its records more often than those of other folders."""
    write_records(tmp_path / "k1" / "a.tfrecord", 4)
    monkeypatch.chdir(tmp_path)
    data = find_records(f"k1,k1/,./k1,{tmp_path}/k1,k1/a.tfrecord")
    assert (data.files, data.counts) == (["k1/a.tfrecord"], [4])


def test_list_without_paths_is_rejected():
    with pytest.raises(InputError, match="--eval_file=' , ': contains no paths"):
        find_record_files(" , ", "eval_file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: manifest.update(version=VERSION + 1), "has format "),
        (lambda manifest: manifest["settings"].clear(), "settings has no 'do_lower_case'"),
        (lambda manifest: manifest["shards"][1].update(rows="3"), r"shards\[1\].rows is '3'"),
        (lambda manifest: manifest["settings"].update(next_sentence="no"), "next_sentence is 'no'"),
        (lambda manifest: manifest["settings"].update(strip_accents="no"), "strip_accents is 'no'"),
    ],
)
def test_manifest_with_invalid_fields_is_rejected(tmp_path, write_dataset, change, message):
    folder = edit_manifest(write_dataset(tmp_path / "a"), change)
    with pytest.raises(InputError, match=rf"a/manifest\.json: {message}.*; expected"):
        find_record_files(str(folder))


def test_files_of_two_lengths_are_rejected_with_both(tmp_path, write_records):
    write_records(tmp_path / "a.tfrecord", 2, length=16)
    write_records(tmp_path / "b.tfrecord", 2, length=32)
    message = r"b\.tfrecord: .* is \(32, 3\); expected \(16, 3\), as in .*a\.tfrecord"
    with pytest.raises(InputError, match=message):
        find_records(str(tmp_path / "*.tfrecord"))


# --- damaged records ---


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: b"", "empty"),
        (lambda content: content[:-7], "is truncated: record 4"),
        (lambda content: b"a text file, which is longer than a record's header\n", "is truncated"),
    ],
)
def test_file_that_is_not_a_whole_tfrecord_is_rejected(tmp_path, write_records, damage, message):
    path = write_records(tmp_path / "a.tfrecord", 5)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=rf"a\.tfrecord.* {message}"):
        find_records(str(path))


def read(path, vocab_size=50):
    """Reads a batch of all records, as training does."""
    data = find_records(str(path))
    with explain_record_errors(data, vocab_size):
        next(iter(training_batches(data, vocab_size, data.num_examples, seed=0)))


def change(path, index, **values):
    """Changes the first value of the given features of a record."""
    examples = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    changed = tf.train.Example.FromString(examples[index])
    for name, value in values.items():
        changed.features.feature[name].int64_list.value[0] = value
    replace(path, index, changed.SerializeToString())


def replace(path, index, example):
    """Replaces the bytes of a record."""
    examples = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    examples[index] = example
    with tf.io.TFRecordWriter(str(path)) as writer:
        for each in examples:
            writer.write(each)


def test_corrupted_record_is_reported_when_training_reads_it(tmp_path, write_records):
    path = write_records(tmp_path / "a.tfrecord", 5)
    content = bytearray(path.read_bytes())
    content[-20] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"a\.tfrecord: record 4: corrupted record"):
        read(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_ids", -1),
        ("masked_lm_ids", 50),
        ("masked_lm_positions", 16),
    ],
)
def test_value_out_of_range_is_reported_with_file_record_and_feature(
    tmp_path, write_records, name, value
):
    path = write_records(tmp_path / "a.tfrecord", 3)
    change(path, 1, **{name: value})
    with pytest.raises(InputError, match=rf"a\.tfrecord: record 1: .*{name} is out of range"):
        read(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (b"", "Feature: input_ids .* is required but could not be found"),
        # Not UTF-8, so that TensorFlow's own error message cannot be decoded either.
        (b"\xff\xfe", "is not a tf.Example$"),
    ],
)
def test_record_that_is_not_an_example_is_reported(tmp_path, write_records, example, reason):
    path = write_records(tmp_path / "a.tfrecord", 3)
    replace(path, 2, example)
    with pytest.raises(InputError, match=rf"a\.tfrecord: record 2: .*{reason}"):
        read(path)


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.InvalidArgumentError(None, None, "Matrix size-incompatible: In[0]: [4,8]"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
)
def test_error_not_caused_by_records_is_raised_unchanged(
    tmp_path, write_records, monkeypatch, caplog, error
):
    data = find_records(str(write_records(tmp_path / "a.tfrecord", 3)))
    monkeypatch.setattr(records, "_first_damaged", lambda *_: pytest.fail("reads the records"))
    with (
        caplog.at_level("INFO", "absl"),
        pytest.raises(type(error)),
        explain_record_errors(data, 50),
    ):
        raise error
    assert not caplog.text
