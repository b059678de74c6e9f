"""Metrics by their definitions, scores of a problem, and the training objective."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_bert.tasks.classification.data import ClassifierSettings
from keras_bert.tasks.classification.metrics import (
    ClassificationObjective,
    accuracy,
    best_thresholds,
    f1,
    f1_macro,
    f1_micro,
    matthews_corrcoef,
    pearson,
    score,
    soft_multi_label_losses,
    soft_score_losses,
    spearman,
)
from tests.tasks.classification.test_decoding import answers_of

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
GOLD = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
GUESS = np.array([1, 1, 1, 0, 0, 1, 0, 0, 0, 0])


def test_accuracy_f1_and_matthews_equal_their_definitions():
    assert accuracy(GUESS, GOLD) == 0.7
    assert f1(GUESS, GOLD) == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    # (tp tn - fp fn) / sqrt((tp + fp)(tp + fn)(tn + fp)(tn + fn))
    assert matthews_corrcoef(GUESS, GOLD) == pytest.approx((3 * 4 - 1 * 2) / (4 * 5 * 5 * 6) ** 0.5)


def test_matthews_of_three_classes():
    # Gorodkin's definition, from the covariances of one-hot rows.
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 3, [2, 60])
    x, y = np.eye(3)[a], np.eye(3)[b]

    def covariance(u, v):
        return ((u - u.mean(0)) * (v - v.mean(0))).sum()

    expected = covariance(x, y) / np.sqrt(covariance(x, x) * covariance(y, y))
    assert matthews_corrcoef(a, b) == pytest.approx(expected, abs=1e-12)


def test_f1_over_classes_equals_the_scikit_learn_documentation():
    # The example of sklearn.metrics.f1_score's documentation: macro 0.26..., micro 0.33...
    gold, guess = np.array([0, 1, 2, 0, 1, 2]), np.array([0, 2, 1, 0, 0, 1])
    assert f1_macro(guess, gold) == pytest.approx(0.8 / 3)
    one_hot = np.eye(3, dtype=int)
    assert f1_micro(one_hot[guess], one_hot[gold]) == pytest.approx(1 / 3)
    # Its multi-label example: f1 of the classes 0.666..., 1, 0.666...
    gold = np.array([[0, 0, 0], [1, 1, 1], [0, 1, 1]])
    guess = np.array([[0, 0, 0], [1, 1, 1], [1, 1, 0]])
    assert f1_macro(guess, gold) == pytest.approx((2 / 3 + 1 + 2 / 3) / 3)
    assert accuracy(guess, gold) == pytest.approx(2 / 3)


@pytest.mark.parametrize("ties", [False, True])
def test_correlations_equal_scipy(ties):
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=[2, 200])
    if ties:
        a, b = np.round(a), np.round(b)
    assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-12)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)


def test_undefined_metric_is_0():
    assert matthews_corrcoef(np.ones(4, int), np.array([1, 1, 0, 0])) == 0
    assert pearson(np.ones(4), np.arange(4)) == 0
    assert f1(np.zeros(3, int), np.zeros(3, int)) == 0


# --- scores of a problem ---


@pytest.mark.parametrize(
    ("problem", "logits", "labels", "metrics"),
    [
        (
            ClassifierSettings(("a", "b"), "single_label", metrics=("accuracy",)),
            [[0.0, 0.0], [0.0, 1000.0]],
            [0, 1],
            {"accuracy": 1.0, "loss": np.log(2) / 2},
        ),
        (
            ClassifierSettings(("a", "b"), "multi_label", metrics=("accuracy",)),
            [[0.0, 0.0], [0.0, 1000.0]],
            [[1.0, 0.0], [0.0, 1.0]],
            {"accuracy": 0.5, "loss": 3 * np.log(2) / 4},
        ),
        (
            ClassifierSettings((), "regression", metrics=("pearson",)),
            [[1.0], [3.0]],
            [0.0, 5.0],
            {"pearson": 1.0, "loss": 2.5},
        ),
    ],
)
def test_loss_is_the_mean_over_examples(problem, logits, labels, metrics):
    scored = score(problem, answers_of(problem, logits), np.array(labels))
    assert scored == pytest.approx(metrics)


# --- training objective ---

LOGITS = np.array([[2.0, -1.0], [0.5, 0.0], [1.0, 3.0], [9.0, -9.0]], np.float32)
WEIGHTS = np.array([1, 1, 1, 0], np.float32)  # the last one pads the batch


def loss(problem_type, labels, class_weights=(), logits=LOGITS):
    task = ClassificationObjective(problem_type, tuple(class_weights))
    batch = {name: tf.zeros([4, 3], tf.int32) for name in ("input_ids", "input_mask")}
    batch |= {"labels": tf.constant(labels), "example_weights": tf.constant(WEIGHTS)}
    sums = task.sums(lambda inputs, training: {"logits": tf.constant(logits)}, batch, False)
    weights = task.weights(batch)
    values = [[float(part[name]) for name in task.metrics] for part in (sums, weights)]
    return task.divide(*map(np.array, values))


def nll(logits, label):
    return float(np.log(np.exp(logits).sum()) - logits[label])


@pytest.mark.parametrize(("class_weights", "weights"), [((), [1, 1, 1]), ((1.0, 3.0), [1, 3, 3])])
def test_single_label_gives_mean_cross_entropy_and_accuracy(class_weights, weights):
    metrics = loss("single_label", [0, 1, 1, 1], class_weights)
    each = [nll(LOGITS[0], 0), nll(LOGITS[1], 1), nll(LOGITS[2], 1)]
    expected = np.average(each, weights=weights)
    assert metrics == {"loss": pytest.approx(expected), "accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize("weights", [(), (1.0, 4.0)])
def test_multi_label_loss_is_the_mean_of_binary_cross_entropies(weights):
    labels = np.array([[1, 0], [0, 1], [1, 1], [0, 0]], np.float32)
    metrics = loss("multi_label", labels, weights)
    probabilities = 1 / (1 + np.exp(-LOGITS))
    terms = -(
        labels * np.log(probabilities) * (weights or 1.0) + (1 - labels) * np.log(1 - probabilities)
    )
    assert metrics == {"loss": pytest.approx(terms[:3].mean(), rel=1e-5)}


def test_regression_loss_is_the_mean_squared_error():
    metrics = loss("regression", np.array([1.0, 0.5, 3.0, 100.0], np.float32), (), LOGITS[:, :1])
    assert metrics == {"loss": pytest.approx((1 + 0 + 4) / 3)}


# --- calibration ---


def test_best_thresholds_are_between_the_probabilities_with_the_highest_f1():
    probabilities = np.array([[0.9, 0.2, 0.6], [0.8, 0.2, 0.5], [0.3, 0.1, 0.4], [0.1, 0.1, 0.2]])
    labels = np.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]])
    # All examples have the best F1 of the second class; equal probabilities are not separated.
    assert best_thresholds(probabilities, labels) == pytest.approx((0.55, 0.05, 0.5))


# --- losses against the outputs of a teacher ---

RANDOM = np.random.default_rng(0)
TEACHER, STUDENT = RANDOM.normal(0, 3, [2, 4, 5]).astype(np.float32)
T = 2.5


def divergence(expected, actual):
    return (expected * np.log(expected / actual)).sum(-1)


def test_multi_label_loss_is_the_mean_of_the_divergences_of_the_classes():
    def pairs(logits):
        share = 1 / (1 + np.exp(-logits.astype(np.float64) / T))
        return np.stack([share, 1 - share], -1)

    expected = T**2 * divergence(pairs(TEACHER), pairs(STUDENT)).mean(-1)
    assert np.allclose(soft_multi_label_losses(TEACHER, STUDENT, T), expected, rtol=1e-5)


def test_score_loss_is_the_squared_difference():
    expected = (TEACHER[:, 0] - STUDENT[:, 0]) ** 2
    assert np.allclose(soft_score_losses(TEACHER[:, :1], STUDENT[:, :1], T), expected)
