"""The objective of training: figures of a task as sums divided by weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

Batch = Mapping[str, Any]  # tensors of the backend, by the name of their feature
AfterBatch = Callable[[], None]  # called after each batch of an evaluation; may end it by raising


@dataclass(frozen=True)
class Objective:
    """The figures of a task, each a numerator over a denominator, both summed over examples.

    Sums make every figure exact for any split of the examples into batches, micro-batches and
    devices; a mean of means would not be.

    Attributes:
        figures: the names of the figures (losses, accuracies), in the order of reports.
        losses: {figure: epsilon}: the figures whose sum is the loss; epsilon is added to the
            denominator.
        weights: batch -> {figure: denominator}, float32 scalars that depend on the data alone.
            An example that pads a batch weighs nothing.
        sums: (model, batch, training) -> {figure: numerator}, float32 scalars.
    """

    figures: Sequence[str]
    losses: Mapping[str, float]
    weights: Callable[[Batch], dict[str, Any]]
    sums: Callable[[keras.Model, Batch, bool], dict[str, Any]]

    def divide(self, sums: np.ndarray, weights: np.ndarray) -> dict[str, float]:
        """Turns sums into figures.

        Args:
            sums: [figures], numerators over any number of batches, in the order of `figures`.
            weights: [figures], denominators over the same batches.

        Returns:
            {"loss": value} followed by {figure: value}; 0 where nothing was weighed.
        """
        epsilons = np.array([self.losses.get(name, 0.0) for name in self.figures])
        # The weights of a batch are whole numbers, so a floor of 1e-12 only guards empty ones.
        values = np.asarray(sums, np.float64) / np.maximum(weights + epsilons, 1e-12)
        figures = dict(zip(self.figures, values.tolist(), strict=True))
        return {"loss": sum(figures[name] for name in self.losses)} | figures
