"""Tests the order of records, a function of (seed, step)."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.pretraining import batches as pretraining_batches
from keras_bert.pretraining.batches import RecordSource, training_batches
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
