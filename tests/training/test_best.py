"""The best evaluation and early stopping depend only on the evaluations."""

import math

import pytest

from keras_bert.training.best import BestWeights


def evaluations(*values):
    return [{"step": 10 * place, "f1": value} for place, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((), None),
        ((0.1, 0.3, 0.2), 20),
        ((0.1, 0.3, 0.3), 20),  # the earlier of equal values
        ((math.nan, 0.3, math.nan), 20),
    ],
)
def test_step_of_the_best_evaluation(values, best):
    kept = BestWeights("f1", lambda: None)
    assert kept.step_of_best(evaluations(*values)) == best


@pytest.mark.parametrize(
    ("values", "patience", "stops"),
    [
        ((0.5, 0.4, 0.4), 0, False),  # 0: never stop
        ((0.5, 0.4), 2, False),
        ((0.5, 0.4, 0.5), 2, True),
        ((0.5, 0.4, 0.6), 2, False),
        ((), 1, False),
    ],
)
def test_training_stops_when_patience_is_exhausted(values, patience, stops):
    kept = BestWeights("f1", lambda: None, patience=patience)
    assert kept.has_stopped(evaluations(*values)) == stops
