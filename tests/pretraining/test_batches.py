"""Tests reading records: the features of batches, their (seed, step) order, invalid files."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.pretraining import batches as pretraining_batches
from keras_bert.pretraining.batches import RecordSource, evaluation_batches, training_batches
from keras_bert.pretraining.records import find_records


@pytest.fixture
def data(tmp_path, write_records):
    for shard in range(3):
        write_records(tmp_path / f"records-{shard}.tfrecord", 10, seed=shard)
    return find_records(str(tmp_path / "*.tfrecord"))


def take(dataset, count):
    return [{k: v.numpy() for k, v in batch.items()} for batch in dataset.take(count)]


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_number_and_shape_of_records_are_found(data):
    assert (data.num_examples, data.max_seq_length, data.max_predictions_per_seq) == (30, 16, 3)


def test_batch_has_the_documented_features(data):
    (batch,) = take(training_batches(RecordSource(data, 50), 4, seed=1), 1)
    assert {name: (value.shape, value.dtype.name) for name, value in batch.items()} == {
        "input_ids": ((4, 16), "int32"),
        "input_mask": ((4, 16), "int32"),
        "segment_ids": ((4, 16), "int32"),
        "masked_lm_positions": ((4, 3), "int32"),
        "masked_lm_ids": ((4, 3), "int32"),
        "masked_lm_weights": ((4, 3), "float32"),
        "next_sentence_labels": ((4,), "int32"),
        "example_weights": ((4,), "float32"),
        "dropout_seed": ((4,), "int32"),
    }


@pytest.mark.parametrize("step", [1, 6, 7, 8, 15, 23])
def test_stream_from_step_n_equals_the_stream_from_0_at_n(data, step):
    uninterrupted = take(training_batches(RecordSource(data, 50), 4, seed=1), step + 2)
    resumed = take(training_batches(RecordSource(data, 50), 4, seed=1, first_step=step), 2)
    assert same(uninterrupted[step], resumed[0])
    assert same(uninterrupted[step + 1], resumed[1])


def test_epoch_reads_every_record_once_in_a_new_order(data):
    batches = take(training_batches(RecordSource(data, 50), 10, seed=1), 6)
    ids = np.concatenate([b["input_ids"] for b in batches])
    first, second = ids[:30], ids[30:]
    assert len({row.tobytes() for row in first}) == 30
    assert {row.tobytes() for row in first} == {row.tobytes() for row in second}
    assert not np.array_equal(first, second)


def test_other_seed_gives_another_order_and_other_dropout(data):
    (one,), (two,) = (take(training_batches(RecordSource(data, 50), 8, seed=s), 1) for s in (1, 2))
    assert not np.array_equal(one["input_ids"], two["input_ids"])
    assert not np.array_equal(one["dropout_seed"], two["dropout_seed"])


@pytest.mark.parametrize("global_seed", [0, 7])
def test_global_seed_does_not_change_the_order(data, global_seed):
    (one,) = take(training_batches(RecordSource(data, 50), 30, seed=1), 1)
    tf.random.set_seed(global_seed)
    (two,) = take(training_batches(RecordSource(data, 50), 30, seed=1), 1)
    assert same(one, two)


def test_last_evaluation_batch_is_padded_with_zero_weight_examples(data):
    batches = take(evaluation_batches(RecordSource(data, 50), 8), 99)
    assert [b["input_ids"].shape for b in batches] == [(8, 16)] * 4
    assert sum(b["example_weights"].sum() for b in batches) == 30
    assert batches[-1]["masked_lm_weights"][6:].sum() == 0


def test_pattern_without_matches_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no record files match '.*nothing\*'"):
        find_records(str(tmp_path / "nothing*"))


def test_empty_file_is_rejected(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        find_records(str(tmp_path / "a.tfrecord"))


def test_truncated_file_is_named_with_the_record(tmp_path, write_records):
    path = write_records(tmp_path / "a.tfrecord", 5)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match=r"a\.tfrecord: is truncated: record 4"):
        find_records(str(path))


def test_file_that_is_not_a_tfrecord_is_rejected(tmp_path):
    (tmp_path / "a.tfrecord").write_text("a text file, which is longer than a record's header\n")
    with pytest.raises(InputError, match=r"a\.tfrecord"):
        find_records(str(tmp_path / "a.tfrecord"))


def test_files_of_two_lengths_are_rejected_with_both(tmp_path, write_records):
    write_records(tmp_path / "a.tfrecord", 2, length=16)
    write_records(tmp_path / "b.tfrecord", 2, length=32)
    message = r"b\.tfrecord: .* is \(32, 3\), but \(16, 3\) in .*a\.tfrecord; expected the same"
    with pytest.raises(InputError, match=message):
        find_records(str(tmp_path / "*.tfrecord"))


@pytest.mark.slow
def test_many_files_and_a_small_shuffle_buffer_give_each_record_once(
    tmp_path, write_records, monkeypatch
):
    monkeypatch.setattr(pretraining_batches, "SHUFFLE_BUFFER", 7)
    for shard in range(11):  # more than are read at a time
        write_records(tmp_path / f"{shard}.tfrecord", 3 + shard % 3, seed=shard)
    data = find_records(str(tmp_path))
    n = data.num_examples
    uninterrupted = take(training_batches(RecordSource(data, 50), 1, seed=1), 2 * n + 3)
    for epoch in (uninterrupted[:n], uninterrupted[n : 2 * n]):
        assert len({batch["input_ids"].tobytes() for batch in epoch}) == n
    for step in (1, n - 1, n, n + 5):
        (resumed,) = take(training_batches(RecordSource(data, 50), 1, seed=1, first_step=step), 1)
        assert same(uninterrupted[step], resumed)


def test_glob_may_match_folders_of_the_data_tool(tmp_path, write_records):
    for folder in ("a", "b"):
        write_records(tmp_path / folder / "x.tfrecord", 4)
    assert find_records(str(tmp_path / "*")).num_examples == 8


@pytest.mark.parametrize("content", ["{", "[]", '{"shards": null}', '{"format": "x"}'])
def test_invalid_manifest_is_named(tmp_path, write_records, content):
    write_records(tmp_path / "x.tfrecord", 4)
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json"):
        find_records(str(tmp_path))
