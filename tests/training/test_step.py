"""Training steps give one result for any split into devices and micro-batches, with dropout."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.pretraining.records import evaluation_batches, find_records, training_batches
from keras_bert.training.evaluate import make_evaluate
from keras_bert.training.objective import TrainingSettings, TrainState
from keras_bert.training.optimizers import AdamWeightDecay, Lamb, LinearWarmupDecay, LossScale
from keras_bert.training.step import make_train_steps
from keras_bert.training.strategy import make_strategy
from tests.training.reference import largest_difference

CONFIG = BertConfig(50, 16, 1, 2, 32, max_position_embeddings=32)
STEPS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_records):
    path = write_records(tmp_path_factory.mktemp("records") / "a.tfrecord", 40)
    return find_records(str(path))


def train(
    data,
    strategy=None,
    dtype="float32",
    clip=1.0,
    change=dict,
    xla=False,
    optimizer=AdamWeightDecay,
    **kwargs,
):
    """Trains STEPS steps of 8 examples; returns the weights by path and the steps' metrics."""
    strategy, loss_scale = strategy or make_strategy(), None
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = BertPretrainer(CONFIG, dtype=dtype)
        optimizer = optimizer(LinearWarmupDecay(1e-3, 10 * STEPS, 2))
        optimizer.build(model.trainable_variables)
        if dtype == "mixed_float16":
            loss_scale = LossScale(optimizer)
    state = TrainState(model, optimizer, PretrainingObjective(), loss_scale)
    settings = TrainingSettings(STEPS, 8, max_grad_norm=clip, jit_compile=xla, **kwargs)
    steps = make_train_steps(strategy, state, settings)
    batches = training_batches(data, CONFIG.vocab_size, 8, seed=0).map(change)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    metrics = steps(iterator, tf.constant(STEPS)).numpy()
    weights = {v.path: keras.ops.convert_to_numpy(v) for v in model.trainable_variables}
    return weights, metrics


@pytest.fixture(scope="module")
def reference(data):
    return train(data)


def assert_close(metrics, expected, rtol):
    for name, one, two in zip(metrics._fields, metrics, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=rtol, err_msg=name)


@pytest.mark.slow
def test_compiled_updates_of_one_shape_share_a_trace(data):
    direction_of, traced = AdamWeightDecay._direction_of, []

    def noted(self, decays, gradient, variable, *rest):
        traced.append((decays, tuple(variable.shape)))
        return direction_of(self, decays, gradient, variable, *rest)

    with mock.patch.object(AdamWeightDecay, "_direction_of", noted):
        weights, _ = train(data, xla=True)
    assert len(traced) == len(set(traced)) < len(weights) / 2


@pytest.mark.slow
def test_micro_batches_of_only_padding_change_nothing(data, reference):
    def with_padding(batch):
        """Inserts padding as every third row, which are the rows of the last micro-batch."""

        def pad(value):
            pairs = tf.reshape(value, [4, 2, *value.shape[1:]])
            rows = tf.pad(pairs, [[0, 0], [0, 1]] + [[0, 0]] * (len(value.shape) - 1))
            return tf.reshape(rows, [12, *value.shape[1:]])

        return {name: pad(value) for name, value in batch.items()}

    weights, metrics = train(data, change=with_padding, gradient_accumulation_steps=3)
    assert largest_difference(weights, reference[0]) < 1e-6
    assert_close(metrics, reference[1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("xla", [False, True])
def test_two_devices_with_two_micro_batches_each_equal_one(data, reference, mirrored, xla):
    weights, metrics = train(data, mirrored, xla=xla, gradient_accumulation_steps=2)
    assert largest_difference(weights, reference[0]) < 1e-6
    assert_close(metrics, reference[1], rtol=1e-5)


@pytest.mark.slow
def test_lamb_on_two_devices_equals_one(data, mirrored):
    one, two = (train(data, strategy, optimizer=Lamb)[0] for strategy in (None, mirrored))
    assert largest_difference(one, two) < 1e-6


@pytest.mark.slow
def test_gradient_is_clipped_by_its_global_norm(data, reference):
    # AdamW steps are scale-free except for epsilon; with a tiny norm, epsilon (1e-6) has an effect.
    one, one_metrics = train(data, clip=1e-5)
    assert one_metrics.gradient_norm.min() > 0.1  # the reported norm is that before clipping
    assert largest_difference(one, reference[0]) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_keeps_float32_weights_and_loss_within_1_percent(data, reference, dtype):
    weights, metrics = train(data, dtype=dtype)
    assert {value.dtype.name for value in weights.values()} == {"float32"}
    sums, expected = metrics.sums[:, :2].sum(), reference[1].sums[:, :2].sum()
    np.testing.assert_allclose(sums, expected, rtol=0.01)
    np.testing.assert_allclose(metrics.gradient_norm, reference[1].gradient_norm, rtol=0.05)


@pytest.mark.slow
def test_evaluation_counts_a_short_last_batch_exactly(data, mirrored):
    keras.utils.set_random_seed(3)
    with mirrored.scope():
        model = BertPretrainer(CONFIG)
    evaluate = make_evaluate(mirrored, model, PretrainingObjective())
    full = evaluate(evaluation_batches(data, CONFIG.vocab_size, 40))
    split = evaluate(evaluation_batches(data, CONFIG.vocab_size, 12))  # 12 + 12 + 12 + 4
    assert full.keys() == split.keys()
    np.testing.assert_allclose(list(full.values()), list(split.values()), rtol=1e-5)
