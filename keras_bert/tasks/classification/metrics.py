"""Defines the training objective of a classifier, and computes official metrics.

The loss of each problem type:

single_label   softmax cross-entropy; an example has the class weight of its label
multi_label    mean sigmoid cross-entropy over the classes; a class weight applies to
               the examples that have the label
regression     squared error
reranking      sigmoid cross-entropy of each pair; or for groups softmax cross-entropy of
               the positive among the passages of its query

Names and values of metrics match scikit-learn and SciPy, which GLUE's scorers use. Undefined
metrics, such as a correlation with constant predictions, are 0. For n examples and C classes,
predictions and labels are int [n]; int [n, C] of 0 and 1 for multi-label tasks; or float [n] for
regression.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_bert.tasks.classification.data import DEFAULT_METRICS, ClassifierSettings
from keras_bert.tasks.classification.processor import decisions
from keras_bert.tasks.settings import Distillation
from keras_bert.training.objective import Batch, OutputObjective, Outputs, soft_label_losses

# --- training objective ---
# Shapes: B examples, C classes.


def multi_label_loss(labels: Any, logits: Any, positive_weights: Any) -> Any:
    """Computes sigmoid cross-entropy, averaged over the classes: labels and logits [B, C] -> [B].

    `labels` is 1 for each label of an example, and 0 otherwise. `positive_weights`, a number or
    [C], is the weight of the labels that are 1.
    """
    # -positive · labels · log(sigmoid(x)) - (1 - labels) · log(1 - sigmoid(x)), without overflow.
    weights = 1.0 + (positive_weights - 1.0) * labels
    softplus = ops.log1p(ops.exp(-ops.abs(logits))) + ops.relu(-logits)
    return ops.mean((1.0 - labels) * logits + weights * softplus, axis=-1)


def soft_multi_label_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the divergence for independent classes, averaged over them: [B, C] -> [B]."""
    teacher, logits = ops.cast(teacher, "float32") / temperature, logits / temperature
    share = ops.sigmoid(teacher)
    losses = share * (ops.log_sigmoid(teacher) - ops.log_sigmoid(logits))
    losses += (1.0 - share) * (ops.log_sigmoid(-teacher) - ops.log_sigmoid(-logits))
    return temperature**2 * ops.mean(losses, axis=-1)


def soft_score_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the squared difference of two scores: [B, 1] -> [B]; they have no temperature."""
    return ops.square(logits[:, 0] - ops.cast(teacher, "float32")[:, 0])


SOFT_CLASSIFICATION_LOSSES = {
    "single_label": soft_label_losses,
    "multi_label": soft_multi_label_losses,
    "regression": soft_score_losses,
    "reranking": soft_multi_label_losses,
}


class ClassificationObjective(OutputObjective):
    """The objective of a classifier, for batches whose "labels" are as in data.py.

    `class_weights` are the weights of the C classes in the loss of the labels; () for equal
    weights. `distillation` adds the losses of a teacher; None for none. `group_size` is the number
    of rows of a group, of which the first one is the positive; 1 without groups.
    """

    def __init__(
        self,
        problem_type: str,
        class_weights: tuple[float, ...] = (),
        distillation: Distillation | None = None,
        group_size: int = 1,
    ):
        # The classes of a group are its passages.
        self.problem_type = problem_type if group_size == 1 else "single_label"
        self.class_weights, self.rows_per_example = class_weights, group_size
        self._is_single = self.problem_type == "single_label"
        self.accuracy = "accuracy" if self._is_single else ""
        super().__init__(distillation)

    def label_losses(self, outputs: Outputs, batch: Batch) -> tuple[Any, Any]:
        """Returns the losses and, for single_label, the hits of the examples or groups, [B]."""
        logits, labels = self._by_group(outputs["logits"]), batch["labels"]
        if self.rows_per_example > 1:
            labels = ops.zeros_like(logits[:, 0], dtype="int32")
        if self._is_single:
            losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return losses, ops.argmax(logits, axis=-1) == labels
        if self.problem_type == "regression":
            return ops.square(logits[:, 0] - ops.reshape(labels, [-1])), None
        weights = np.array(self.class_weights, np.float32) if self.class_weights else 1.0
        return multi_label_loss(labels, logits, weights), None

    def soft_losses(self, teacher: Outputs, outputs: Outputs, temperature: float) -> Any:
        """Returns the losses of the soft targets, [B], or of groups."""
        losses = SOFT_CLASSIFICATION_LOSSES[self.problem_type]
        logits = (self._by_group(each["logits"]) for each in (teacher, outputs))
        return losses(*logits, temperature)

    def item_weights(self, batch: Batch) -> Any:
        """Returns the weights of the examples or groups."""
        return batch["example_weights"][:: self.rows_per_example]

    def _by_group(self, logits: Any) -> Any:
        size = self.rows_per_example
        return logits if size == 1 else ops.reshape(logits, [-1, size])

    def loss_weights(self, batch: Batch) -> Any:
        """Returns the weights of the examples or groups, with those of their classes."""
        weights = self.item_weights(batch)
        if self._is_single and self.class_weights:
            of_class = ops.convert_to_tensor(np.array(self.class_weights, np.float32))
            weights *= ops.take(of_class, batch["labels"], axis=0)
        return weights


# --- metrics ---


def score(
    problem: ClassifierSettings, answers: Mapping[str, np.ndarray], labels: np.ndarray
) -> dict[str, float]:
    """Computes the metrics of a classification problem, and the mean loss as "loss".

    `answers` are the decoded outputs for n examples, and `labels` is their `label_array`.
    """
    if problem.problem_type == "reranking":
        return _reranking_scores(answers["logits"].reshape(labels.shape), labels)
    predictions = decisions(problem, answers)
    is_regression = problem.problem_type == "regression"
    logits = predictions[:, np.newaxis] if is_regression else answers["logits"]
    loss = {"loss": _mean_loss(problem.problem_type, logits, labels)}
    # `f1` scores class number 1, but "1" may be class 0 of a checkpoint: renumber by name.
    metrics = problem.metrics or DEFAULT_METRICS[problem.problem_type]
    if "f1" in metrics:
        number = np.argsort(np.argsort(problem.labels))
        predictions, labels = number[predictions], number[labels]
    return {name: METRICS[name](predictions, labels) for name in metrics} | loss


def _reranking_scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Scores logits [n, k] of groups, or [n, 1] of pairs; the labels have the same shape.

    The accuracy of groups is the fraction of those whose positive has the highest logit. That of
    pairs is the fraction whose probability and label are on the same side of 0.5.
    """
    if labels.shape[1] > 1:
        is_best = logits[:, 0] > logits[:, 1:].max(axis=1)
        loss = _mean_loss("single_label", logits, np.zeros(len(labels), np.int64))
        return {"accuracy": float(np.mean(is_best)), "loss": loss}
    return {
        "accuracy": accuracy(logits[:, 0] > 0, labels[:, 0] > 0.5),
        "spearman": spearman(logits[:, 0], labels[:, 0]),
        "loss": _mean_loss("multi_label", logits, labels),
    }


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes the fraction of examples whose labels are all predicted correctly."""
    right = predictions == labels
    return float(np.mean(right.all(axis=1) if right.ndim == 2 else right))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes the F1 score of class 1, where all predictions and labels are 0 or 1."""
    return _f1(*_counts(predictions == 1, labels == 1))


def f1_macro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Averages the F1 scores of the classes that occur in the predictions or the labels.

    For multi-label tasks, it averages the F1 scores of all C classes.
    """
    if labels.ndim == 2:
        pairs = list(zip(predictions.T == 1, labels.T == 1, strict=True))
    else:
        classes = np.union1d(predictions, labels)
        pairs = [(predictions == each, labels == each) for each in classes]
    return float(np.mean([_f1(*_counts(*pair)) for pair in pairs]))


def f1_micro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes the micro-averaged F1 score of 0/1 arrays [n, C] of a multi-label task."""
    return _f1(*_counts(predictions.ravel() == 1, labels.ravel() == 1))


def matthews_corrcoef(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes the Matthews correlation coefficient of two or more classes (Gorodkin 2004)."""
    classes = np.union1d(predictions, labels)
    predicted = np.array([np.sum(predictions == each) for each in classes], np.float64)
    true = np.array([np.sum(labels == each) for each in classes], np.float64)
    n, right = len(labels), float(np.sum(predictions == labels))
    return _ratio(
        right * n - predicted @ true,
        np.sqrt(n * n - predicted @ predicted) * np.sqrt(n * n - true @ true),
    )


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes Pearson's correlation of regression values and labels."""
    a, b = (np.asarray(values, np.float64) for values in (predictions, labels))
    a, b = a - a.mean(), b - b.mean()
    return _ratio(a @ b, np.sqrt(a @ a) * np.sqrt(b @ b))


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes Spearman's rank correlation; equal values have the mean of their ranks."""
    return pearson(_ranks(predictions), _ranks(labels))


METRICS = {
    function.__name__: function
    for function in (accuracy, f1, f1_macro, f1_micro, matthews_corrcoef, pearson, spearman)
}


def _mean_loss(problem_type: str, logits: np.ndarray, labels: np.ndarray) -> float:
    """Computes the mean of the training loss, without class weights.

    `logits` is float [n, C], or [n, 1] for regression.
    """
    logits = logits.astype(np.float64)
    if problem_type == "regression":
        return float(np.mean((logits[:, 0] - labels) ** 2))
    if problem_type == "multi_label":
        return float(np.mean(np.logaddexp(0, logits) - logits * labels))
    largest = logits.max(axis=1)
    log_sums = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    return float(np.mean(log_sums - logits[np.arange(len(labels)), labels]))


# --- calibration ---


def best_temperature(problem_type: str, logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the temperature from 0.1 to 10 with the lowest loss of logits [n, C] divided by it.

    `labels` is the result of `label_array`. The loss has one minimum, since it is convex in the
    inverse of the temperature; each step of the search keeps two thirds of an interval.
    """
    low, high = np.log([0.1, 10.0])
    for _ in range(60):
        points = low + (high - low) / 3, high - (high - low) / 3
        first, second = (
            _mean_loss(problem_type, logits / np.exp(point), labels) for point in points
        )
        low, high = (low, points[1]) if first < second else (points[0], high)
    return float(np.exp(low))


def best_thresholds(probabilities: np.ndarray, labels: np.ndarray) -> tuple[float, ...]:
    """Returns the threshold of each class with the highest F1, of probabilities and labels [n, C].

    It is in the middle of two probabilities; 0.5 for a class without examples.
    """
    thresholds = []
    for scores, is_class in zip(probabilities.T, labels.T, strict=True):
        order = np.argsort(-scores, kind="stable")
        scores, hits = scores[order], np.cumsum(is_class[order])
        f1_scores = 2 * hits / (np.arange(1, len(scores) + 1) + hits[-1])
        below = np.append(scores[1:], 0.0)
        last = int(np.argmax(np.where(scores > below, f1_scores, -1.0)))
        thresholds.append(float(scores[last] + below[last]) / 2 if hits[-1] else 0.5)
    return tuple(thresholds)


def _counts(predicted: np.ndarray, true: np.ndarray) -> tuple[int, int, int]:
    return int(np.sum(predicted & true)), int(np.sum(predicted)), int(np.sum(true))


def _f1(both: int, predicted: int, true: int) -> float:
    return _ratio(2 * both, predicted + true)


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[indices]
