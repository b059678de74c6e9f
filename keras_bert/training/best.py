"""Selects the best evaluation of a run and implements early stopping.

Both are computed from the evaluations in metrics.jsonl alone, so a run that was killed and resumed
makes the same decisions as an uninterrupted one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Evaluations = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class BestWeights:
    """Saves the best weights of a run and stops a run that no longer improves.

    Attributes:
        metric: the name of the metric to compare; the highest value is the best.
        save: saves the current weights; called after each evaluation that is the best so far.
        patience: the number of evaluations without improvement after which training stops; 0
            disables early stopping.
    """

    metric: str
    save: Callable[[], None]
    patience: int = 0

    def step_of_best(self, evaluations: Evaluations) -> int | None:
        """Returns the step of the best evaluation (the earliest one on ties), or None without any.

        Args:
            evaluations: {"step": ..., metric: value} of each evaluation, in the order of steps.
        """
        index = self._index_of_best(evaluations)
        return None if index is None else int(evaluations[index]["step"])

    def has_stopped(self, evaluations: Evaluations) -> bool:
        """Returns whether the last `patience` evaluations all failed to improve on the best one."""
        index = self._index_of_best(evaluations)
        if not self.patience or index is None:
            return False
        return len(evaluations) - 1 - index >= self.patience

    def _index_of_best(self, evaluations: Evaluations) -> int | None:
        if not evaluations:
            return None
        values = np.array([evaluation[self.metric] for evaluation in evaluations], float)
        return int(np.argmax(np.where(np.isnan(values), -np.inf, values)))
