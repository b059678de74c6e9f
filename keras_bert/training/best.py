"""Chooses the best evaluation, and decides when evaluations stop improving.

Both follow from the evaluations alone, which metrics.jsonl keeps, so that a run that was killed
decides as it would have done.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Evaluations = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class BestKept:
    """Keeps the best weights of a run, and stops a run that no longer improves.

    Attributes:
        figure: the name of the figure that decides; the highest is the best.
        save: keeps the weights as they are; called when an evaluation is the best so far.
        patience: training ends after so many evaluations without a better one; 0 for never.
    """

    figure: str
    save: Callable[[], None]
    patience: int = 0

    def step_of_best(self, evaluations: Evaluations) -> int | None:
        """Finds the best evaluation, the earliest of equals.

        Args:
            evaluations: {"step": ..., figure: value} of each, in the order of steps.

        Returns:
            Its step; None if there are none.
        """
        place = self._place_of_best(evaluations)
        return None if place is None else int(evaluations[place]["step"])

    def has_stopped(self, evaluations: Evaluations) -> bool:
        """Returns whether training ends.

        Args:
            evaluations: as for `step_of_best`.

        Returns:
            True once the last `patience` evaluations were no better than one before them.
        """
        place = self._place_of_best(evaluations)
        if not self.patience or place is None:
            return False
        return len(evaluations) - 1 - place >= self.patience

    def _place_of_best(self, evaluations: Evaluations) -> int | None:
        if not evaluations:
            return None
        values = np.array([evaluation[self.figure] for evaluation in evaluations], float)
        return int(np.argmax(np.where(np.isnan(values), -np.inf, values)))
