"""Gradient checkpointing gives the plain gradients and recomputes blocks in the backward pass."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.data.records import find_records
from keras_bert.models import BertPretrainer
from keras_bert.models.layers.recompute import recomputed
from keras_bert.optimization.optimizers import AdamWeightDecay
from keras_bert.tasks.pretraining.batches import RecordSource, training_batches
from keras_bert.tasks.pretraining.objective import pretraining_objective
from keras_bert.training.objective import TrainingSettings, TrainState
from keras_bert.training.step import compiled, make_train_steps, recomputing
from keras_bert.training.strategy import make_strategy

CONFIG = BertConfig(50, 16, 2, 2, 32, max_position_embeddings=16, initializer_range=0.2)
ROWS = {
    "input_ids": [[3, 4, 5, 6, 7, 0], [1, 2, 3, 4, 5, 6]],
    "input_mask": [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]],
    "segment_ids": [[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]],
    "masked_lm_positions": [[1, 2], [3, 5]],
    "dropout_seed": [11, 12],
}
PACKED = ROWS | {
    "position_ids": [[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]],
    "example_ids": [[1, 1, 1, 2, 2, 0], [1, 1, 2, 2, 2, 2]],
    "next_sentence_positions": [[0, 3], [0, 2]],
}


def make_model(dtype="float32"):
    keras.utils.set_random_seed(0)
    return BertPretrainer(CONFIG, dtype=dtype)


def gradients(model, rows, compile_with, twice, fully_compiled=False):
    """Returns the gradient of the sum of squared logits by path, with dropout."""
    variables = model.trainable_variables

    def backward(inputs):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])
            with (
                recomputing(model, fully_compiled=fully_compiled)
                if twice
                else contextlib.nullcontext()
            ):
                outputs = model(inputs, training=True)
            loss = tf.add_n([tf.reduce_sum(logits**2) for logits in outputs.values()])
        found = tape.gradient(loss, variables, unconnected_gradients="zero")
        return [tf.convert_to_tensor(gradient) for gradient in found]

    inputs = {name: tf.constant(value) for name, value in rows.items()}
    found = compile_with(backward)(inputs)
    return {v.path: g.numpy() for v, g in zip(variables, found, strict=True)}


def check_equal(one, two):
    assert one.keys() == two.keys()
    for path, value in one.items():
        assert np.abs(two[path] - value).max() <= 1e-6 * max(1.0, np.abs(value).max()), path


def plainly(function):
    return compiled(function, jit_compile=False)


def in_chains(function):
    return compiled(function, jit_compile=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "dtype", "compile_with"),
    [
        (ROWS, "float32", plainly),
        (PACKED, "float32", plainly),
        (ROWS, "mixed_bfloat16", in_chains),
    ],
    ids=["plain", "packed", "bfloat16-chains"],
)
def test_gradients_equal_those_of_the_plain_model_with_dropout(rows, dtype, compile_with):
    model = make_model(dtype)
    once = gradients(model, rows, compile_with, twice=False)
    assert sum(np.abs(value).max() > 0 for value in once.values()) == len(once)
    check_equal(once, gradients(model, rows, compile_with, twice=True))


@pytest.mark.slow
def test_frozen_layers_give_the_same_gradients():
    model = make_model()
    for layer in (model.encoder.embeddings, model.encoder.blocks[0]):
        layer.trainable = False
    once = gradients(model, ROWS, plainly, twice=False)
    assert not any("layer_0/" in path for path in once)
    check_equal(once, gradients(model, ROWS, plainly, twice=True))


class Noted(keras.layers.Layer):
    """tanh(x·w) that reports its name when it runs."""

    def __init__(self, name, record=None):
        super().__init__(name=name)
        self.record = record
        self.w = self.add_weight((3, 3), initializer="orthogonal", name="w")

    def call(self, x):
        if self.record:

            def note(x):
                self.record(self.name)
                return 0 * x

            # Stateless: TensorFlow is free to choose when to run it, as with a matrix product.
            noted = tf.numpy_function(note, [x], x.dtype, stateful=False)
            x = x + tf.stop_gradient(tf.ensure_shape(noted, x.shape))
        return tf.tanh(tf.matmul(x, self.w))


class Stack(keras.Model):
    """Noted layers "a", "b" and "c", each marked for recomputation."""

    def __init__(self, record=None):
        super().__init__()
        self.blocks = [Noted(name, record) for name in "abc"]

    def call(self, x):
        for block in self.blocks:
            x = recomputed(block)(x)
        return x


def backward_of(model, fully_compiled):
    def backward(x):
        with tf.GradientTape() as tape, recomputing(model, fully_compiled=fully_compiled):
            loss = tf.reduce_sum(model(x) ** 2)
        return loss, tape.gradient(loss, [block.w.value for block in model.blocks])

    return backward


def test_block_is_recomputed_when_the_gradient_reaches_it():
    notes = []
    plainly(backward_of(Stack(notes.append), fully_compiled=False))(tf.ones([2, 3]))
    assert notes == ["a", "b", "c", "c", "b", "a"]


def test_xla_does_not_merge_recomputation_with_the_forward_pass():
    model = Stack()
    step = tf.function(backward_of(model, fully_compiled=True), jit_compile=True, autograph=False)
    once = backward_of(model, fully_compiled=False)(tf.ones([2, 3]))  # not compiled
    for one, two in zip(tf.nest.flatten(once), tf.nest.flatten(step(tf.ones([2, 3]))), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-6)
    program = step.experimental_get_compiler_ir(tf.ones([2, 3]))(stage="optimized_hlo")
    assert program.count(" tanh(") == 6


@pytest.fixture(scope="module")
def data(tmp_path_factory, write_records):
    path = write_records(tmp_path_factory.mktemp("records") / "a.tfrecord", 16)
    return find_records(str(path))


def train(data, strategy, twice, **settings):
    """Trains two steps of 8 examples; returns the weights by path and the steps' metrics."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = BertPretrainer(CONFIG)
        optimizer = AdamWeightDecay(1e-3)
        optimizer.build(model.trainable_variables)
    settings = TrainingSettings(2, 8, jit_compile=False, gradient_checkpointing=twice, **settings)
    state = TrainState(model, optimizer, pretraining_objective())
    steps = make_train_steps(strategy, state, settings)
    batches = training_batches(RecordSource(data, CONFIG.vocab_size), 8, seed=0)
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    metrics = steps(iterator, tf.constant(2)).numpy()
    weights = {v.path: keras.ops.convert_to_numpy(v) for v in model.trainable_variables}
    return weights, metrics


@pytest.mark.slow
def test_two_devices_with_two_micro_batches_each_equal_the_plain_step(data, mirrored):
    once, once_metrics = train(data, make_strategy(), twice=False)
    twice, twice_metrics = train(data, mirrored, twice=True, gradient_accumulation_steps=2)
    assert max(np.abs(once[path] - twice[path]).max() for path in once) < 1e-6
    for one, two in zip(once_metrics, twice_metrics, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5)
