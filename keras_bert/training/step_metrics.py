"""Defines the metrics that training steps return, and averages them between two log lines."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_bert.training.objective import Objective


class StepMetrics(NamedTuple):
    """The metrics of n training steps, with one row per step, float32.

    Attributes:
        sums: [n, F], numerators of the objective's F metrics over the global batch.
        weights: [n, F], the denominators of these metrics.
        tokens: [n], the number of tokens in the batch, without padding.
        examples: [n], the number of rows in the batch that are (parts of) examples, not padding.
        loss_scale: [n], the factor by which the loss was multiplied; 1 without loss scaling.
        gradient_norm: [n], the global norm of the gradient before clipping.
        learning_rate: [n], the learning rate of the step.
    """

    sums: Any
    weights: Any
    tokens: Any
    examples: Any
    loss_scale: Any
    gradient_norm: Any
    learning_rate: Any

    def numpy(self) -> "StepMetrics":
        """Waits for the steps to finish and returns their metrics as NumPy arrays."""
        return StepMetrics(*map(np.asarray, self))

    def losses(self, objective: Objective) -> np.ndarray:
        """Returns the loss of each step, [n]."""
        rows = zip(self.sums, self.weights, strict=True)
        return np.array([objective.divide(sums, weights)["loss"] for sums, weights in rows])


def concatenate(parts: Sequence[StepMetrics]) -> StepMetrics:
    """Concatenates the metrics of consecutive steps."""
    return StepMetrics(*map(np.concatenate, zip(*parts, strict=True)))


class StepWindow:
    """Averages the metrics of the steps between two log lines, and measures their throughput."""

    def __init__(self, objective: Objective, has_loss_scale: bool = False):
        self._objective = objective
        self._has_loss_scale = has_loss_scale
        self._parts: list[StepMetrics] = []
        self._timed: list[StepMetrics] = []
        self._seconds = 0.0
        self._has_compiled = False
        self.restart_clock()

    def restart_clock(self) -> None:
        """Excludes the time since the last `add`, for example of an evaluation, from throughput."""
        self._since = time.monotonic()

    def add(self, metrics: StepMetrics) -> None:
        """Adds the metrics of completed steps, and the time since the last `add` or restart."""
        self._parts.append(metrics)
        if self._has_compiled:  # The first steps include the compilation.
            self._timed.append(metrics)
            self._seconds += time.monotonic() - self._since
        self._has_compiled = True
        self.restart_clock()

    def close(self) -> dict[str, float]:
        """Returns {metric: value} of the steps since the last `close`, and starts a new window.

        The learning rate, the gradient norm and the loss scale are the latest ones (the latest
        finite norm); the other metrics are averages over the steps.
        """
        steps = concatenate(self._parts)
        # The loss or the norm of a skipped step may not be finite.
        finite = np.isfinite(steps.sums).all(axis=1)
        metrics = {}
        if finite.any():
            sums, weights = (
                part[finite].astype(np.float64).sum(axis=0) for part in (steps.sums, steps.weights)
            )
            metrics = self._objective.divide(sums, weights)
        metrics["learning_rate"] = float(steps.learning_rate[-1])
        norms = steps.gradient_norm[np.isfinite(steps.gradient_norm)]
        if len(norms):
            metrics["gradient_norm"] = float(norms[-1])
        if self._has_loss_scale:
            metrics["loss_scale"] = float(steps.loss_scale[-1])
        if self._timed:
            timed = concatenate(self._timed)
            rows = timed.examples.sum(dtype=np.float64)
            examples = rows / self._objective.rows_per_example
            metrics |= {
                "examples_per_second": examples / self._seconds,
                "tokens_per_second": timed.tokens.sum(dtype=np.float64) / self._seconds,
            }
        self._parts, self._timed, self._seconds = [], [], 0.0
        return metrics
