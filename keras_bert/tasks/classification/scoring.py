"""Scores a classifier's decoded outputs with the metrics of its task."""

from collections.abc import Mapping

import numpy as np

from keras_bert.tasks.classification.data import Problem
from keras_bert.tasks.classification.metrics import compute_metrics, mean_loss
from keras_bert.tasks.classification.predictions import decisions


def score(
    problem: Problem, answers: Mapping[str, np.ndarray], labels: np.ndarray
) -> dict[str, float]:
    """Computes the metrics of a classification problem, and the mean loss as "loss".

    `answers` is the result of `ClassificationProcessor.decode` for n examples, as arrays, and
    `labels` is the `label_array` of the same examples.
    """
    predictions = decisions(problem, answers)
    is_regression = problem.problem_type == "regression"
    logits = predictions[:, np.newaxis] if is_regression else answers["logits"]
    loss = {"loss": mean_loss(problem.problem_type, logits, labels)}
    # `f1` scores class number 1, but "1" may be class 0 of a checkpoint: renumber by name.
    if "f1" in problem.metrics:
        place = np.argsort(np.argsort(problem.labels))
        predictions, labels = place[predictions], place[labels]
    return compute_metrics(problem.metrics, predictions, labels) | loss
