"""Tests scores of decoded outputs: the metrics of the problem type, and the mean loss."""

import numpy as np
import pytest

from keras_bert.tasks.classification.data import Problem
from keras_bert.tasks.classification.scoring import score
from tests.tasks.classification.test_predictions import answers_of


@pytest.mark.parametrize(
    ("problem", "logits", "labels", "metrics"),
    [
        (
            Problem("single_label", ("a", "b"), ("accuracy",)),
            [[0.0, 0.0], [0.0, 1000.0]],
            [0, 1],
            {"accuracy": 1.0, "loss": np.log(2) / 2},
        ),
        (
            Problem("multi_label", ("a", "b"), ()),
            [[0.0, 0.0], [0.0, 1000.0]],
            [[1.0, 0.0], [0.0, 1.0]],
            {"loss": 3 * np.log(2) / 4},
        ),
        (
            Problem("regression", (), ("pearson",)),
            [[1.0], [3.0]],
            [0.0, 5.0],
            {"pearson": 1.0, "loss": 2.5},
        ),
    ],
)
def test_loss_is_the_mean_over_examples(problem, logits, labels, metrics):
    scored = score(problem, answers_of(problem, logits), np.array(labels))
    assert scored == pytest.approx(metrics)


def test_f1_is_that_of_label_1_in_any_label_order():
    labels, logits = np.array([1, 1, 0, 0]), np.array([[0, 1.0], [1, 0], [1, 0], [1, 0]])
    metrics = []
    for names in (("0", "1"), ("1", "0")):
        problem = Problem("single_label", names, ("accuracy", "f1"))
        order = [int(name) for name in names]
        numbers = np.argsort(order)[labels]
        metrics.append(score(problem, answers_of(problem, logits[:, order]), numbers))
    assert metrics[0] == metrics[1]
    assert metrics[0]["f1"] == pytest.approx(2 / 3)
