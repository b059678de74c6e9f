"""Selects the best evaluation of a run, and stops a run that no longer improves.

Both depend only on the evaluations in metrics.jsonl and on the step of the saved weights, so a
resumed run makes the same decisions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# {"step": ..., metric: value} of each evaluation, in the order of steps.
Evaluations = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class BestWeights:
    """Saves the best weights of a run and stops a run that no longer improves.

    Attributes:
        metric: the name of the metric to compare; higher is better.
        save: saves the current weights, together with the given step.
        read_step: returns the step of the saved weights; None if there are none, or if an earlier
            version saved them without a step.
        patience: the number of evaluations without improvement after which training stops; 0
            disables early stopping.
    """

    metric: str
    save: Callable[[int], None]
    read_step: Callable[[], int | None]
    patience: int = 0

    def step_of_best(self, evaluations: Evaluations) -> int | None:
        """Returns the step of the best evaluation, the earliest one on ties; None without any."""
        index = self._index_of_best(evaluations)
        return None if index is None else int(evaluations[index]["step"])

    def step_of_saved(self, evaluations: Evaluations) -> int | None:
        """Returns the step of the saved weights.

        It differs from `step_of_best` if the run was killed after weights were saved, and their
        evaluation, repeated when the run resumed, gave a lower value.
        """
        step = self.read_step()
        return self.step_of_best(evaluations) if step is None else step

    def save_if_better(self, evaluations: Evaluations) -> None:
        """Saves the current weights, those of the last evaluation, unless saved ones are better.

        Saved weights of the same step are replaced, because another attempt at this step saved
        them, and so are weights of a step without an evaluation.
        """
        *earlier, last = evaluations
        step, saved = int(last["step"]), self.step_of_saved(earlier)
        compared = [each for each in earlier if each["step"] == saved and saved != step]
        if self.step_of_best([*compared, last]) == step:
            self.save(step)

    def has_stopped(self, evaluations: Evaluations) -> bool:
        """Returns whether `patience` evaluations, if above 0, have followed the best one."""
        index = self._index_of_best(evaluations)
        if not self.patience or index is None:
            return False
        return len(evaluations) - 1 - index >= self.patience

    def _index_of_best(self, evaluations: Evaluations) -> int | None:
        if not evaluations:
            return None
        values = np.array([evaluation[self.metric] for evaluation in evaluations], float)
        return int(np.argmax(np.where(np.isnan(values), -np.inf, values)))
