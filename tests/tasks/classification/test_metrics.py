"""Tests that metrics equal those of SciPy and the documented examples of scikit-learn."""

import numpy as np
import pytest
from scipy import stats

from keras_bert.tasks.classification.metrics import (
    accuracy,
    f1,
    f1_macro,
    f1_micro,
    matthews_corrcoef,
    pearson,
    spearman,
)

# 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
GOLD = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
GUESS = np.array([1, 1, 1, 0, 0, 1, 0, 0, 0, 0])


def test_accuracy_f1_and_matthews_equal_their_definitions():
    assert accuracy(GUESS, GOLD) == 0.7
    assert f1(GUESS, GOLD) == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    # (tp tn - fp fn) / sqrt((tp + fp)(tp + fn)(tn + fp)(tn + fn))
    assert matthews_corrcoef(GUESS, GOLD) == pytest.approx((3 * 4 - 1 * 2) / (4 * 5 * 5 * 6) ** 0.5)


def test_f1_is_that_of_class_1():
    assert f1(1 - GUESS, 1 - GOLD) == pytest.approx(2 * 4 / (2 * 4 + 1 + 2))


def test_matthews_of_two_classes_is_pearson_of_zeros_and_ones():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, [2, 50])
    assert matthews_corrcoef(a, b) == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-12)


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
