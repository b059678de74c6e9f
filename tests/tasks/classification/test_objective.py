"""Tests the loss and weights of each problem type; padding examples have no effect."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks.classification.objective import classification_objective

LOGITS = np.array([[2.0, -1.0], [0.5, 0.0], [1.0, 3.0], [9.0, -9.0]], np.float32)
WEIGHTS = np.array([1, 1, 1, 0], np.float32)  # the last one pads the batch


def loss(problem_type, labels, class_weights=None, logits=LOGITS):
    task = classification_objective(problem_type, class_weights)
    batch = {name: tf.zeros([4, 3], tf.int32) for name in ("input_ids", "input_mask")}
    batch |= {"labels": tf.constant(labels), "example_weights": tf.constant(WEIGHTS)}
    sums = task.sums(lambda inputs, training: {"logits": tf.constant(logits)}, batch, False)
    weights = task.weights(batch)
    values = [[float(part[name]) for name in task.metrics] for part in (sums, weights)]
    return task.divide(*map(np.array, values))


def nll(logits, label):
    return float(np.log(np.exp(logits).sum()) - logits[label])


def test_single_label_gives_mean_cross_entropy_and_accuracy():
    metrics = loss("single_label", [0, 1, 1, 1])
    expected = np.mean([nll(LOGITS[0], 0), nll(LOGITS[1], 1), nll(LOGITS[2], 1)])
    assert metrics == {"loss": pytest.approx(expected), "accuracy": pytest.approx(2 / 3)}


def test_class_weights_weight_examples_by_their_label():
    metrics = loss("single_label", [0, 1, 1, 1], np.array([1.0, 3.0], np.float32))
    each = [nll(LOGITS[0], 0), nll(LOGITS[1], 1), nll(LOGITS[2], 1)]
    assert metrics["loss"] == pytest.approx(np.average(each, weights=[1, 3, 3]))
    assert metrics["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("weights", [None, [1.0, 4.0]])
def test_multi_label_loss_is_the_mean_of_binary_cross_entropies(weights):
    labels = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.float32)
    metrics = loss("multi_label", labels, weights and np.array(weights, np.float32))
    probabilities = 1 / (1 + np.exp(-LOGITS))
    terms = -(
        labels * np.log(probabilities) * (weights or 1) + (1 - labels) * np.log(1 - probabilities)
    )
    assert metrics == {"loss": pytest.approx(terms[:3].mean(), rel=1e-5)}


def test_regression_loss_is_the_mean_squared_error():
    metrics = loss("regression", np.array([1.0, 0.5, 3.0, 100.0], np.float32), None, LOGITS[:, :1])
    assert metrics == {"loss": pytest.approx((1 + 0 + 4) / 3)}
