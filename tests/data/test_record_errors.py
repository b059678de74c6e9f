"""Tests that errors of damaged records name the file, the record and the reason in one line."""

import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.data import record_errors
from keras_bert.data.pretraining_records import find_records
from keras_bert.data.record_errors import explain_record_errors
from keras_bert.tasks.pretraining.batches import RecordSource, training_batches


def read(path, vocab_size=50):
    """Reads a batch of all records, as training does."""
    data = find_records(str(path))
    with explain_record_errors(data, vocab_size):
        next(iter(training_batches(RecordSource(data, vocab_size), data.num_examples, seed=0)))


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


def test_records_of_a_larger_vocabulary_are_reported(tmp_path, write_records):
    path = write_records(tmp_path / "a.tfrecord", 5)
    with pytest.raises(InputError, match=r"input_ids is out of range: .* at least 0 and below 20"):
        read(path, 20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_ids", -1),
        ("masked_lm_ids", -5),
        ("masked_lm_positions", 16),
        ("segment_ids", 2),
        ("next_sentence_labels", 5),
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


def test_records_are_checked_in_batches_after_a_log_message(
    tmp_path, write_records, monkeypatch, caplog
):
    path = write_records(tmp_path / "a.tfrecord", 30)
    change(path, 21, input_ids=-1)
    monkeypatch.setattr(record_errors, "_BATCH_SIZES", (8, 4, 1))
    checked = []
    parse = record_errors.parse_records

    def counted(serialized, data, vocab_size):
        assert "checking all 30 records in 1 files" in caplog.text
        checked.append(len(serialized))
        return parse(serialized, data, vocab_size)

    monkeypatch.setattr(record_errors, "parse_records", counted)
    with (
        caplog.at_level("INFO", "absl"),
        pytest.raises(InputError, match=r"a\.tfrecord: record 21: "),
    ):
        read(path)
    # 16 records are valid, then 4 of the next 8, then 1 of the next 4.
    assert checked == [8, 8, 8, 4, 4, 1, 1]


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
    monkeypatch.setattr(
        record_errors, "_first_damaged", lambda *_: pytest.fail("reads the records")
    )
    with (
        caplog.at_level("INFO", "absl"),
        pytest.raises(type(error)),
        explain_record_errors(data, 50),
    ):
        raise error
    assert not caplog.text
