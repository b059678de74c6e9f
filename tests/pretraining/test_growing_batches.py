"""Growing batches: micro-batches of each step, their records and rows, and training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.batches import BatchRamp, RecordSource, training_batches
from keras_bert.pretraining.objective import pretraining_objective
from keras_bert.pretraining.records import find_records
from keras_bert.training.objective import TrainingSettings, TrainState, check_batch_sizes
from keras_bert.training.optimizers import AdamWeightDecay
from keras_bert.training.step import make_train_steps

# --- ramp ---


def test_micro_batches_grow_linearly_from_one_to_all():
    assert BatchRamp(4, 6).counts().tolist() == [1, 1, 2, 2, 3, 3]
    assert [BatchRamp(4, 6).before(step) for step in (0, 1, 6, 8)] == [0, 1, 12, 20]


def test_without_a_ramp_every_step_has_all_micro_batches():
    assert BatchRamp(4).before(3) == 12
    assert BatchRamp().before(3) == 3


@given(st.integers(2, 40), st.integers(1, 200), st.integers(0, 300))
def test_counts_rise_by_at_most_one_and_add_up(micro_batches, steps, step):
    ramp = BatchRamp(micro_batches, steps)
    counts = np.append(ramp.counts(), micro_batches)
    assert counts[0] == 1
    assert (np.diff(counts) >= 0).all()
    if steps >= micro_batches:
        assert np.diff(counts).max() <= 1
    assert ramp.before(step + 1) - ramp.before(step) == counts[min(step, steps)]


# --- batches ---


BATCH = 12
RAMP = BatchRamp(3, 4)  # 1, 1, 2, 2 micro-batches, then 3, of 4 records each
COUNTS = [1, 1, 2, 2, 3, 3]


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_records):
    path = write_records(tmp_path_factory.mktemp("records") / "a.tfrecord", 31)
    return find_records(str(path))


def take(dataset, count):
    return [{k: v.numpy() for k, v in batch.items()} for batch in dataset.take(count)]


@pytest.fixture(scope="module")
def grown(data):
    return take(training_batches(RecordSource(data, 50), BATCH, seed=1, ramp=RAMP), len(COUNTS))


def real(batch):
    return {name: value[batch["example_weights"] > 0] for name, value in batch.items()}


def test_every_batch_has_the_full_size_and_weights_only_real_rows(grown):
    assert {batch["input_ids"].shape for batch in grown} == {(BATCH, 16)}
    assert [batch["example_weights"].sum() for batch in grown] == [4 * count for count in COUNTS]
    assert [batch["masked_lm_weights"].sum() for batch in grown] == [
        real(batch)["masked_lm_weights"].sum() for batch in grown
    ]


def test_row_r_belongs_to_micro_batch_r_mod_3(grown):
    for count, batch in zip(COUNTS, grown, strict=True):
        filled = batch["example_weights"].reshape(4, 3)
        np.testing.assert_array_equal(filled, np.arange(3)[None, :] < np.full([4, 1], count))


def test_records_are_read_in_order_and_only_as_needed(data, grown):
    plain = take(training_batches(RecordSource(data, 50), 4, seed=1), sum(COUNTS))
    read = np.concatenate([real(batch)["input_ids"] for batch in grown])
    np.testing.assert_array_equal(read, np.concatenate([b["input_ids"] for b in plain]))


@pytest.mark.parametrize("step", [1, 3, 4, 5])
def test_stream_from_step_n_equals_the_stream_from_0_at_n(data, grown, step):
    (resumed,) = take(
        training_batches(RecordSource(data, 50), BATCH, seed=1, first_step=step, ramp=RAMP), 1
    )
    assert all(np.array_equal(value, grown[step][name]) for name, value in resumed.items())


@pytest.mark.slow
def test_each_worker_has_its_rows_of_every_micro_batch(tmp_path, write_records):
    for name in "ab":
        write_records(tmp_path / f"{name}.tfrecord", 31)
    data = find_records(str(tmp_path))
    seeds = set()
    for share in ((0, 2), (1, 2)):
        own = take(
            training_batches(RecordSource(data, 50, share=share), BATCH, seed=1, ramp=RAMP), 6
        )
        for count, batch in zip(COUNTS, own, strict=True):
            filled = batch["example_weights"].reshape(2, 3)
            np.testing.assert_array_equal(filled, np.arange(3)[None, :] < np.full([2, 1], count))
        (resumed,) = take(
            training_batches(
                RecordSource(data, 50, share=share), BATCH, seed=1, first_step=3, ramp=RAMP
            ),
            1,
        )
        assert all(np.array_equal(value, own[3][name]) for name, value in resumed.items())
        seeds |= set(real(own[3])["dropout_seed"].tolist())
    assert len(seeds) == 8  # 2 micro-batches of 4 records, each with its own dropout mask


def train(strategy, batches, micro_batches):
    """Trains on batches with dropout; returns the weights and the metrics of the steps."""
    keras.utils.set_random_seed(3)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    with strategy.scope():
        model = BertPretrainer(config)
        optimizer = AdamWeightDecay(1e-3)
        optimizer.build(model.trainable_variables)
    state = TrainState(model, optimizer, pretraining_objective())
    settings = TrainingSettings(
        len(COUNTS), BATCH, gradient_accumulation_steps=micro_batches, jit_compile=False
    )
    steps = make_train_steps(strategy, state, settings)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    metrics = steps(iterator, tf.constant(len(COUNTS))).numpy()
    weights = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    return weights, metrics


def largest_difference(one, two):
    return max(np.abs(a - b).max() for a, b in zip(one, two, strict=True))


@pytest.fixture(scope="module")
def small_batches(data, grown):
    """Trains on the real rows only, in batches of the sizes of the ramp."""
    signature = {
        name: tf.TensorSpec([None, *value.shape[1:]], value.dtype)
        for name, value in grown[0].items()
    }
    batches = tf.data.Dataset.from_generator(lambda: map(real, grown), output_signature=signature)
    return train(tf.distribute.get_strategy(), batches, 1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy_name", ["default", "mirrored"])
def test_growing_batch_trains_like_batches_of_its_sizes(
    data, small_batches, strategy_name, mirrored
):
    strategy = mirrored if strategy_name == "mirrored" else tf.distribute.get_strategy()
    batches = training_batches(RecordSource(data, 50), BATCH, seed=1, ramp=RAMP)
    weights, metrics = train(strategy, batches, 3)
    assert largest_difference(weights, small_batches[0]) < 1e-6
    for one, two in zip(metrics, small_batches[1], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4)
    assert metrics.examples.tolist() == [
        4 * count for count in COUNTS
    ]  # the count for the rate per second


def test_ramp_needs_micro_batches():
    settings = TrainingSettings(10, BATCH, batch_ramp_steps=4)
    with pytest.raises(InputError, match=r"--batch_ramp_steps=4 needs --gradient_accumulation"):
        check_batch_sizes(tf.distribute.get_strategy(), settings, 4)
