"""The best evaluation and early stopping depend only on the evaluations."""

import math

import pytest

from keras_bert.training.best import BestWeights


def evaluations(*values):
    """Makes evaluations of steps 10, 20, ... from F1 scores, or from pairs of F1 and loss."""
    pairs = [value if isinstance(value, tuple) else (value,) for value in values]
    return [
        {"step": 10 * place, **dict(zip(("f1", "loss"), pair, strict=False))}
        for place, pair in enumerate(pairs, 1)
    ]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((), None),
        ((0.1, 0.3, 0.2), 20),
        ((0.1, 0.3, 0.3), 30),  # the later of equal values
        (((1.0, 0.94), (1.0, 0.68), (1.0, 0.58)), 30),  # of equal values, that of the lowest loss
        (((0.5, 0.3), (0.5, 0.2), (0.4, 0.1), (0.5, 0.4)), 20),
        (((0.5, 0.2), (0.5, 0.2)), 20),
        (((0.5, math.nan), (0.5, 9.0), (0.5, math.nan)), 20),
        ((math.nan, 0.3, math.nan), 20),
        ((math.nan, math.nan), 20),
    ],
)
def test_step_of_the_best_evaluation(values, best):
    kept = BestWeights("f1", lambda step: None, lambda: None)
    assert kept.step_of_best(evaluations(*values)) == best


@pytest.mark.parametrize(
    ("values", "patience", "stops"),
    [
        ((0.5, 0.4, 0.4), 0, False),  # 0: never stop
        ((0.5, 0.4), 2, False),
        ((0.5, 0.4, 0.5), 2, True),
        ((0.5, 0.4, 0.6), 2, False),
        ((1.0, 1.0, 1.0), 2, True),  # an equal value is no improvement
        (((1.0, 0.94), (1.0, 0.68), (1.0, 0.58)), 2, False),  # but a lower loss is
        (((1.0, 0.58), (1.0, 0.68), (1.0, 0.58)), 2, True),
        ((math.nan, math.nan, math.nan), 2, True),
        ((), 1, False),
    ],
)
def test_training_stops_when_patience_is_exhausted(values, patience, stops):
    kept = BestWeights("f1", lambda step: None, lambda: None, patience=patience)
    assert kept.has_stopped(evaluations(*values)) == stops


@pytest.mark.parametrize(
    ("saved", "values", "is_saved"),
    [
        (None, (0.5,), True),
        (None, (0.5, 0.4), False),  # saved by an earlier version, at the best step
        (None, (0.5, 0.6), True),
        (10, (0.5, 0.5), True),  # a tie
        (10, ((0.5, 0.2), (0.5, 0.1)), True),
        (10, ((0.5, 0.1), (0.5, 0.2)), False),
        (20, ((0.5, 0.1), (0.5, 0.3), (0.5, 0.2)), True),  # step 10 was lost
        (10, (0.5, 0.6), True),
        (20, (0.5, 0.4), True),  # by an attempt that was killed
        (30, (0.5, 0.4), True),  # of a step that must be repeated
        (20, (0.9, 0.5, 0.6), True),  # step 10 was lost, so step 20 counts
        (20, (0.9, 0.5, 0.4), False),
        (10, (math.nan, 0.1), True),
        (10, (0.1, math.nan), False),
    ],
)
def test_weights_are_compared_with_the_saved_ones(saved, values, is_saved):
    steps = []
    kept = BestWeights("f1", steps.append, lambda: saved)
    kept.save_if_better(evaluations(*values))
    assert steps == [10 * len(values)] * is_saved


@pytest.mark.parametrize(("saved", "step"), [(None, 20), (20, 20), (10, 10)])
def test_saved_step_is_read_or_else_that_of_the_best_evaluation(saved, step):
    kept = BestWeights("f1", lambda step: None, lambda: saved)
    assert kept.step_of_saved(evaluations(0.1, 0.3)) == step
