"""Tests the loss: the mean over tagged tokens, independent of the rest of the batch."""

import numpy as np
import tensorflow as tf

from keras_bert.tasks.ner.objective import tagging_objective


def test_only_tagged_tokens_of_real_examples_count():
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    tags = np.array([[-1, 2, 4, -1], [-1, 0, -1, -1], [-1, 3, 3, -1]], np.int32)
    batch = {
        **{name: tf.zeros([3, 4], tf.int32) for name in ("input_ids", "input_mask")},
        "tags": tf.constant(tags),
        "example_weights": tf.constant([1.0, 1.0, 0.0]),  # The last row pads the batch.
    }
    task = tagging_objective()
    sums = task.sums(lambda inputs, training: {"logits": tf.constant(logits)}, batch, True)
    weights = task.weights(batch)
    metrics = task.divide(
        np.array([sums[name] for name in task.metrics]),
        np.array([weights[name] for name in task.metrics]),
    )
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    counted = [(0, 1, 2), (0, 2, 4), (1, 1, 0)]
    assert weights["loss"] == 3
    np.testing.assert_allclose(
        metrics["loss"], -np.mean([log_probabilities[place] for place in counted]), rtol=1e-6
    )
    hits = [logits[row, token].argmax() == tag for row, token, tag in counted]
    np.testing.assert_allclose(metrics["tag_accuracy"], np.mean(hits))


def test_batch_without_tagged_tokens_has_the_loss_0_and_no_gradient():
    logits = tf.random.normal([1, 4, 5])
    batch = {
        **{name: tf.zeros([1, 4], tf.int32) for name in ("input_ids", "input_mask")},
        "tags": tf.fill([1, 4], -1),
        "example_weights": tf.ones([1]),
    }
    task = tagging_objective()
    with tf.GradientTape() as tape:
        tape.watch(logits)
        sums = task.sums(lambda inputs, training: {"logits": logits}, batch, True)
        loss = task.loss(sums, task.weights(batch))
    assert float(loss) == 0
    assert not tf.math.count_nonzero(tape.gradient(loss, logits))
