"""Defines the objective of training: the losses and metrics of a task as weighted means."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

Batch = Mapping[str, Any]  # tensors of the backend by feature name
AfterBatch = Callable[[], None]  # called after each evaluation batch; raises to end the evaluation


@dataclass(frozen=True)
class Objective:
    """The metrics of a task, each a numerator over a denominator, both summed over examples.

    Sums make every metric exact for any split of the examples into batches, micro-batches and
    devices, which a mean of means would not be.

    Attributes:
        metrics: the names of the metrics (losses, accuracies), in the order in which they are
            reported.
        losses: {metric: epsilon} of the metrics whose sum is the loss; epsilon is added to the
            denominator.
        weights: a function batch -> {metric: denominator}, float32 scalars that depend only on the
            data. Examples that only pad a batch have weight 0.
        sums: a function (model, batch, training) -> {metric: numerator}, float32 scalars.
    """

    metrics: Sequence[str]
    losses: Mapping[str, float]
    weights: Callable[[Batch], dict[str, Any]]
    sums: Callable[[keras.Model, Batch, bool], dict[str, Any]]

    def divide(self, sums: np.ndarray, weights: np.ndarray) -> dict[str, float]:
        """Divides sums by weights.

        Args:
            sums: [F], numerators over any number of batches, in the order of `metrics`.
            weights: [F], denominators over the same batches.

        Returns:
            {"loss": value} followed by {metric: value}; 0 where the weight is 0.
        """
        epsilons = np.array([self.losses.get(name, 0.0) for name in self.metrics])
        # Weights are whole numbers, so the minimum of 1e-12 only prevents a division by zero.
        values = np.asarray(sums, np.float64) / np.maximum(weights + epsilons, 1e-12)
        metrics = dict(zip(self.metrics, values.tolist(), strict=True))
        return {"loss": sum(metrics[name] for name in self.losses)} | metrics
