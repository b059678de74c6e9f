"""Selects the best evaluation of a run, and stops a run that no longer improves.

An evaluation is better than another if its metric is higher, or if the metrics are equal and its
loss is lower. Not every task has a loss. Of equal evaluations, the last one has the best weights.

Both decisions depend only on the evaluations in metrics.jsonl and on the step of the saved weights,
so a resumed run makes the same decisions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# {"step": ..., metric: value} of each evaluation, in the order of steps.
Evaluations = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class BestWeights:
    """Saves the best weights of a run and stops a run that no longer improves.

    Attributes:
        metric: the name of the metric to compare; higher is better. Evaluations with equal values
            are compared by their "loss", if they have one.
        save: a function that takes the current step, and saves it with the current weights.
        read_step: a function that returns the step of the saved weights; None if no weights are
            saved, or if an earlier version of this library saved them without a step.
        patience: the number of evaluations that are not better than all earlier ones after which
            training stops; 0 disables early stopping.
    """

    metric: str
    save: Callable[[int], None]
    read_step: Callable[[], int | None]
    patience: int = 0

    def step_of_best(self, evaluations: Evaluations) -> int | None:
        """Returns the step of the best evaluation, the last on ties; None if there are none."""
        return int(max(reversed(evaluations), key=self._rank)["step"]) if evaluations else None

    def step_of_saved(self, evaluations: Evaluations) -> int | None:
        """Returns the step of the saved weights, or `step_of_best` if that is unknown.

        The two steps differ if the run was killed after it had saved weights, and the resumed run
        got a lower value at their step than at an earlier one, whose weights are lost.
        """
        step = self.read_step()
        return self.step_of_best(evaluations) if step is None else step

    def save_if_better(self, evaluations: Evaluations) -> None:
        """Saves the current weights, unless the evaluation of the saved ones was better.

        The last of `evaluations` is that of the current weights. Saved weights of the same step
        are always replaced, because they are from an earlier attempt at this step. Saved weights of
        a step without an evaluation are replaced, too.
        """
        *earlier, last = evaluations
        step, saved = int(last["step"]), self.step_of_saved(earlier)
        compared = [each for each in earlier if each["step"] == saved and saved != step]
        if self.step_of_best([*compared, last]) == step:
            self.save(step)

    def has_stopped(self, evaluations: Evaluations) -> bool:
        """Returns whether the last `patience` evaluations are not better than all earlier ones.

        The result is False if `patience` is 0, or if there are no evaluations.
        """
        if not self.patience or not evaluations:
            return False
        ranks = [self._rank(evaluation) for evaluation in evaluations]
        return len(ranks) - 1 - ranks.index(max(ranks)) >= self.patience

    def _rank(self, evaluation: Mapping[str, float]) -> tuple[float, float]:
        """Returns a pair that is greater for a better evaluation; NaN is worse than all numbers."""
        values = float(evaluation[self.metric]), -float(evaluation.get("loss", math.nan))
        return tuple(-math.inf if math.isnan(value) else value for value in values)
