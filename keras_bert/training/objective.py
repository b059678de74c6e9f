"""Defines the losses and metrics of a task as weighted means."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

Batch = Mapping[str, Any]  # tensors of the backend by feature name
AfterBatch = Callable[[], None]  # called after each evaluation batch; may raise to interrupt it


@dataclass(frozen=True)
class RowObjective:
    """The two steps of a loss that depends on one vector per row of a whole batch.

    Attributes:
        vectors: a function (model, batch, training) -> float32 [rows, width].
        sums: a function (vectors, batch) -> {metric: numerator}, float32 scalars.
    """

    vectors: Callable[[keras.Model, Batch, bool], Any]
    sums: Callable[[Any, Batch], dict[str, Any]]


@dataclass(frozen=True)
class Objective:
    """The metrics of a task, each a numerator over a denominator, both summed over examples.

    Unlike a mean of means, the quotient of sums is exact for any split of the examples into
    batches, micro-batches and devices.

    Attributes:
        metrics: the names of the metrics (losses, accuracies), in the reported order.
        losses: {metric: epsilon} of the metrics whose sum is the loss; epsilon is added to the
            denominator.
        weights: a function batch -> {metric: denominator}, float32 scalars that depend only on the
            data. Examples that only pad a batch have weight 0.
        sums: a function (model, batch, training) -> {metric: numerator}, float32 scalars.
        rows: for losses that depend on a whole batch, not on single rows: the step from a batch to
            one vector per row; `sums` then consists of its two functions. None for other losses.
        rows_per_example: the number of consecutive rows of a batch that form an example.
    """

    metrics: Sequence[str]
    losses: Mapping[str, float]
    weights: Callable[[Batch], dict[str, Any]]
    sums: Callable[[keras.Model, Batch, bool], dict[str, Any]]
    rows: RowObjective | None = None
    rows_per_example: int = 1

    def loss(self, sums: Mapping[str, Any], totals: Mapping[str, Any]) -> Any:
        """Computes the loss of a batch from {metric: numerator} and {metric: denominator}.

        A loss of weight 0, such as that of a batch without any labeled token, is 0.
        """
        return sum(
            sums[name] / ops.maximum(totals[name] + epsilon, 1e-12)
            for name, epsilon in self.losses.items()
        )

    def divide(self, sums: np.ndarray, weights: np.ndarray) -> dict[str, float]:
        """Returns {"loss": value} followed by {metric: value}; a metric of weight 0 is 0.

        `sums` [F] and `weights` [F] are the total numerators and denominators over the same
        batches, in the order of the F `metrics`.
        """
        epsilons = np.array([self.losses.get(name, 0.0) for name in self.metrics])
        # Weights are whole numbers, so the minimum of 1e-12 only prevents a division by zero.
        values = np.asarray(sums, np.float64) / np.maximum(weights + epsilons, 1e-12)
        metrics = dict(zip(self.metrics, values.tolist(), strict=True))
        return {"loss": sum(metrics[name] for name in self.losses)} | metrics
