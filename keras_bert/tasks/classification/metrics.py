"""Computes the official metrics of classification.

Names and values are those of scikit-learn and SciPy, which GLUE's scorers use. A figure that has
no value, such as a correlation with predictions that are all the same, is 0.
"""

from collections.abc import Sequence

import numpy as np

DEFAULT_METRICS = {
    "single_label": ("accuracy", "f1_macro"),
    "multi_label": ("f1_micro", "f1_macro", "accuracy"),
    "regression": ("pearson", "spearman"),
}


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes the share of examples that are predicted right, with all their labels.

    Args:
        predictions: int [n], or [n, C] of 0 and 1.
        labels: likewise.

    Returns:
        0 to 1.
    """
    right = predictions == labels
    return float(np.mean(right.all(axis=1) if right.ndim == 2 else right))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes F1 of class 1.

    Args:
        predictions: int [n], 0 or 1.
        labels: likewise.

    Returns:
        0 to 1.
    """
    return _f1(*_counts(predictions == 1, labels == 1))


def f1_macro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes the mean of the classes' F1, over the classes that occur.

    Args:
        predictions: int [n], or [n, C] of 0 and 1 where every class counts.
        labels: likewise.

    Returns:
        0 to 1.
    """
    if labels.ndim == 2:
        pairs = list(zip(predictions.T == 1, labels.T == 1, strict=True))
    else:
        classes = np.union1d(predictions, labels)
        pairs = [(predictions == each, labels == each) for each in classes]
    return float(np.mean([_f1(*_counts(*pair)) for pair in pairs]))


def f1_micro(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes F1 over all pairs of example and class.

    Args:
        predictions: [n, C] of 0 and 1.
        labels: likewise.

    Returns:
        0 to 1.
    """
    return _f1(*_counts(predictions.ravel() == 1, labels.ravel() == 1))


def matthews_corrcoef(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes Matthews' correlation, for two classes or more (Gorodkin 2004).

    Args:
        predictions: int [n].
        labels: int [n].

    Returns:
        -1 to 1.
    """
    classes = np.union1d(predictions, labels)
    predicted = np.array([np.sum(predictions == each) for each in classes], np.float64)
    true = np.array([np.sum(labels == each) for each in classes], np.float64)
    n, right = len(labels), float(np.sum(predictions == labels))
    return _ratio(
        right * n - predicted @ true,
        np.sqrt(n * n - predicted @ predicted) * np.sqrt(n * n - true @ true),
    )


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes Pearson's correlation.

    Args:
        predictions: float [n].
        labels: float [n].

    Returns:
        -1 to 1.
    """
    a, b = (np.asarray(values, np.float64) for values in (predictions, labels))
    a, b = a - a.mean(), b - b.mean()
    return _ratio(a @ b, np.sqrt(a @ a) * np.sqrt(b @ b))


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Computes Spearman's correlation: Pearson's of the ranks; equal values share their mean rank.

    Args:
        predictions: float [n].
        labels: float [n].

    Returns:
        -1 to 1.
    """
    return pearson(_ranks(predictions), _ranks(labels))


METRICS = {
    function.__name__: function
    for function in (accuracy, f1, f1_macro, f1_micro, matthews_corrcoef, pearson, spearman)
}


def figures_of(
    metrics: Sequence[str], predictions: np.ndarray, labels: np.ndarray
) -> dict[str, float]:
    """Computes metrics.

    Args:
        metrics: names of METRICS.
        predictions: classes int [n], [n, C] of 0 and 1, or values float [n].
        labels: likewise, as labels.py makes them.

    Returns:
        {name: value}.
    """
    return {name: METRICS[name](predictions, labels) for name in metrics}


def mean_loss(problem_type: str, logits: np.ndarray, labels: np.ndarray) -> float:
    """Computes the mean loss of an example, unweighted.

    Args:
        problem_type: single_label, multi_label or regression.
        logits: float [n, C].
        labels: as labels.py makes them.
    """
    logits = logits.astype(np.float64)
    if problem_type == "regression":
        return float(np.mean((logits[:, 0] - labels) ** 2))
    if problem_type == "multi_label":
        return float(np.mean(np.logaddexp(0, logits) - logits * labels))
    largest = logits.max(axis=1)
    log_sums = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
    return float(np.mean(log_sums - logits[np.arange(len(labels)), labels]))


def _counts(predicted: np.ndarray, true: np.ndarray) -> tuple[int, int, int]:
    return int(np.sum(predicted & true)), int(np.sum(predicted)), int(np.sum(true))


def _f1(both: int, predicted: int, true: int) -> float:
    return _ratio(2 * both, predicted + true)


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
