"""Tests that cached gradients equal those of the whole batch, with dropout and filler rows."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.models import BertEncoder
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.embedding.metrics import embedding_objective
from keras_bert.training.cached_gradients import make_cached_gradients
from keras_bert.training.run import TrainingSettings
from keras_bert.training.state import TrainState

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=16,
    initializer_range=0.2,
)
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


def plain_gradients(model, objective, batch, scale):
    with tf.GradientTape() as tape:
        sums = objective.sums(model, batch, True)
        loss = sums["loss"] / objective.weights(batch)["loss"] * scale
    gradients = tape.gradient(
        loss, [v.value for v in model.trainable_variables], unconnected_gradients="zero"
    )
    return sums["loss"], [tf.convert_to_tensor(gradient) for gradient in gradients]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return BertEncoder(CONFIG)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "steps", "empty", "scale"),
    [
        (EmbeddingLoss("mnrl", columns=3), 3, 2, 1.0),  # The last micro-batch has filler rows.
        (EmbeddingLoss("mnrl", columns=2, sizes=(16, 4)), 4, 0, 8.0),
        (EmbeddingLoss("cosent"), 12, 1, 1.0),
    ],
)
def test_gradients_equal_those_of_the_whole_batch(model, loss, steps, empty, scale):
    objective, batch = embedding_objective(loss, "mean"), make_batch(loss.columns, empty)
    settings = TrainingSettings(1, EXAMPLES, steps, jit_compile=False)
    cached = make_cached_gradients(TrainState(model, None, objective, None), settings)
    totals = objective.weights(batch)
    sums, gradients = tf.function(cached, autograph=False)(batch, totals, tf.constant(scale))
    expected_sum, expected = plain_gradients(model, objective, batch, scale)
    np.testing.assert_allclose(sums[0], expected_sum, rtol=1e-5)
    largest = max(np.abs(value).max() for value in expected)
    assert largest > 1e-3
    for variable, found, value in zip(model.trainable_variables, gradients, expected, strict=True):
        np.testing.assert_allclose(
            found, value, rtol=1e-5, atol=1e-5 * largest, err_msg=variable.path
        )


def test_both_passes_have_the_same_dropout_masks(model):
    """Without the seeds of the batch, the gradients differ from those of the whole batch."""
    loss = EmbeddingLoss("mnrl")
    objective, batch = embedding_objective(loss, "cls"), make_batch(2)
    rows = objective.rows
    first, second = (rows.vectors(model, batch, True) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = rows.vectors(model, {**batch, "dropout_seed": batch["dropout_seed"] + 1}, True)
    assert np.abs(other - first).max() > 0.1
    assert np.abs(rows.vectors(model, batch, False) - first).max() > 0.1


@pytest.mark.slow
def test_gradients_are_the_same_with_recomputation_and_xla(model):
    objective, batch = embedding_objective(EmbeddingLoss("mnrl"), "mean"), make_batch(2)
    settings = TrainingSettings(1, EXAMPLES, 2, jit_compile=True)
    totals, results = objective.weights(batch), []
    for changed in (settings, replace(settings, gradient_checkpointing=True)):
        cached = make_cached_gradients(TrainState(model, None, objective, None), changed)
        results.append(tf.function(cached, autograph=False)(batch, totals, tf.constant(1.0))[1])
    _, expected = plain_gradients(model, objective, batch, 1.0)
    for found, again, value in zip(*results, expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(again, value, rtol=1e-4, atol=1e-4)
