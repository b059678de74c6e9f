"""Selects the best evaluation of a run and implements early stopping.

Both are computed from the evaluations in metrics.jsonl alone, so a run that was killed and resumed
makes the same decisions as an uninterrupted one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Evaluations = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class BestKept:
    """Saves the best weights of a run and stops a run that no longer improves.

    Attributes:
        figure: the name of the metric to compare; the highest value is the best.
        save: saves the current weights; called after each evaluation that is the best so far.
        patience: the number of evaluations without improvement after which training stops; 0
            disables early stopping.
    """

    figure: str
    save: Callable[[], None]
    patience: int = 0

    def step_of_best(self, evaluations: Evaluations) -> int | None:
        """Returns the step of the best evaluation (the earliest one on ties), or None without any.

        Args:
            evaluations: {"step": ..., metric: value} of each evaluation, in the order of steps.
        """
        place = self._place_of_best(evaluations)
        return None if place is None else int(evaluations[place]["step"])

    def has_stopped(self, evaluations: Evaluations) -> bool:
        """Returns whether the last `patience` evaluations all failed to improve on the best one."""
        place = self._place_of_best(evaluations)
        if not self.patience or place is None:
            return False
        return len(evaluations) - 1 - place >= self.patience

    def _place_of_best(self, evaluations: Evaluations) -> int | None:
        if not evaluations:
            return None
        values = np.array([evaluation[self.figure] for evaluation in evaluations], float)
        return int(np.argmax(np.where(np.isnan(values), -np.inf, values)))
