"""Scores a classifier's decoded outputs by the metrics of its task."""

from collections.abc import Mapping

import numpy as np

from keras_bert.tasks.classification.data import Problem
from keras_bert.tasks.classification.metrics import figures_of, mean_loss
from keras_bert.tasks.classification.predictions import decisions


def score(
    problem: Problem, answers: Mapping[str, np.ndarray], labels: np.ndarray
) -> dict[str, float]:
    """Scores outputs.

    Args:
        problem: labels and metrics.
        answers: what the classifier's `decode` returns; of a regression, its `score`.
        labels: as labels.py makes them.

    Returns:
        {name: value} of the problem's metrics, and "loss", the mean loss of an example.
    """
    predictions = decisions(problem, answers)
    is_regression = problem.problem_type == "regression"
    logits = predictions[:, np.newaxis] if is_regression else answers["logits"]
    figures = {"loss": mean_loss(problem.problem_type, logits, labels)}
    if "f1" in problem.metrics:  # Of "1", even if the checkpoint has that before "0".
        place = np.argsort(np.argsort(problem.labels))
        predictions, labels = place[predictions], place[labels]
    return figures_of(problem.metrics, predictions, labels) | figures
