"""Gradients of the step: cached, and with recomputed blocks."""

import contextlib
from dataclasses import replace
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.models import BertEncoder, BertPretrainer
from keras_bert.models.attention import TransformerBlock
from keras_bert.models.layers import replaced
from keras_bert.tasks.embedding.losses import EmbeddingLoss, EmbeddingObjective
from keras_bert.training.objective import TrainingSettings, TrainState
from keras_bert.training.step import (
    compiled,
    make_cached_gradients,
    recomputing,
)

# --- gradient checkpointing ---


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


def gradients(model, rows, compile_with, twice):
    """Returns the gradient of the sum of squared logits by path, with dropout."""
    variables = model.trainable_variables

    def backward(inputs):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])
            with recomputing(model, fully_compiled=False) if twice else contextlib.nullcontext():
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


def test_blocks_are_traced_once():
    call = TransformerBlock.call
    with mock.patch.object(TransformerBlock, "call", autospec=True, side_effect=call) as traced:
        gradients(make_model(), ROWS, plainly, twice=False)
    assert traced.call_count == 1


def change_activation(block):
    block.intermediate.activation = keras.ops.relu


def change_lora(block):
    block.intermediate.dense.lora_alpha = 50


@pytest.mark.parametrize("change", [change_activation, change_lora])
def test_blocks_with_other_settings_are_traced_for_themselves(change):
    model = make_model()
    for block in model.encoder.blocks:
        block.intermediate.dense.enable_lora(2, lora_alpha=1)
        block.intermediate.dense.lora_kernel_b.assign_add(keras.ops.ones((2, 32)))
    change(model.encoder.blocks[1])
    check_equal(
        gradients(model, ROWS, lambda function: function, twice=False),
        gradients(model, ROWS, plainly, twice=False),
    )


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
    """Noted layers "a", "b" and "c", each of which may be replaced."""

    def __init__(self, record=None):
        super().__init__()
        self.blocks = [Noted(name, record) for name in "abc"]

    def call(self, x):
        for block in self.blocks:
            x = replaced(block)(x)
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


# --- losses of a whole batch ---


ONE_LAYER = replace(CONFIG, num_hidden_layers=1)
EXAMPLES, LENGTH = 6, 8


def make_batch(columns, empty=0):
    """Returns a batch of random texts; the last `empty` examples only fill it."""
    rng = np.random.default_rng(1)
    rows = EXAMPLES * columns
    lengths = rng.integers(3, LENGTH + 1, [rows, 1])
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    weights = np.repeat(np.arange(EXAMPLES) < EXAMPLES - empty, columns).astype(np.float32)
    return {
        "input_ids": tf.constant(mask * rng.integers(1, 50, [rows, LENGTH]), tf.int32),
        "input_mask": tf.constant(mask),
        "segment_ids": tf.zeros([rows, LENGTH], tf.int32),
        "example_weights": tf.constant(weights),
        "dropout_seed": tf.constant(rng.integers(-(2**31), 2**31, rows), tf.int32),
        "scores": tf.constant(np.repeat(rng.random(EXAMPLES), columns), tf.float32),
        "text_ids": tf.range(rows, dtype=tf.int32),
    }


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return BertEncoder(ONE_LAYER)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "steps", "empty", "scale", "jit_compile", "recomputes"),
    [
        # The last micro-batch has filler rows.
        (EmbeddingLoss("mnrl", columns=3), 3, 2, 1.0, False, False),
        (EmbeddingLoss("mnrl", columns=2, sizes=(16, 4)), 4, 0, 8.0, False, False),
        (EmbeddingLoss("cosent"), 12, 1, 1.0, True, False),
        (EmbeddingLoss("mnrl"), 2, 0, 1.0, True, True),
    ],
)
def test_gradients_equal_those_of_the_whole_batch(
    model, loss, steps, empty, scale, jit_compile, recomputes
):
    objective, batch = EmbeddingObjective(loss, "mean"), make_batch(loss.columns, empty)
    settings = TrainingSettings(
        1, EXAMPLES, steps, jit_compile=jit_compile, gradient_checkpointing=recomputes
    )
    cached = make_cached_gradients(TrainState(model, None, objective, None), settings)
    totals = objective.weights(batch)
    sums, gradients = tf.function(cached, autograph=False)(batch, totals, tf.constant(scale))
    with tf.GradientTape() as tape:
        expected_sum = objective.sums(model, batch, True)["loss"]
        loss = expected_sum / totals["loss"] * scale
    weights = [variable.value for variable in model.trainable_variables]
    expected = tape.gradient(loss, weights, unconnected_gradients="zero")
    expected = [tf.convert_to_tensor(gradient) for gradient in expected]
    np.testing.assert_allclose(sums[0], expected_sum, rtol=1e-5)
    largest = max(np.abs(value).max() for value in expected)
    assert largest > 1e-3
    for variable, found, value in zip(model.trainable_variables, gradients, expected, strict=True):
        np.testing.assert_allclose(
            found, value, rtol=1e-5, atol=1e-5 * largest, err_msg=variable.path
        )
