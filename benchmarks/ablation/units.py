"""Defines the units of work of the study.

A unit is the pre-training of an arm, or one fine-tuning of an arm with a task and a seed. Its key
is the name of its entry in the arm's file of results:

    pretraining                          the pre-training of the arm
    MRPC/seed-0                          fine-tuning of the final model
    40%/MRPC/seed-0                      fine-tuning of the checkpoint at 40 % of the steps
    WNUT-17 features last/seed-0         a tagger on the last layer of the final model
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ablation import plan
from ablation.plan import TASKS, Arm, Plan

PRETRAINING = "pretraining"


@dataclass(frozen=True)
class Unit:
    """One unit of work of an arm.

    `task` is empty for the pre-training. `features` is a name in `plan.FEATURES`, or empty for
    fine-tuning. `percent` is the share of the pre-training steps that the model was trained for.
    """

    arm: Arm
    task: str = ""
    seed: int = 0
    percent: int = 100
    features: str = ""

    @property
    def key(self) -> str:
        """The name of the unit's entry in the file of the arm."""
        if not self.task:
            return PRETRAINING
        point = "" if self.percent == 100 else f"{self.percent}%/"
        features = f" features {self.features}" if self.features else ""
        return f"{point}{self.task}{features}/seed-{self.seed}"


def units_of(arm: Arm, study: Plan) -> Iterator[Unit]:
    """Yields the units of an arm in the order in which they run."""
    yield Unit(arm)
    for task in arm.tasks:
        yield from (Unit(arm, task, seed) for seed in study.seeds)
    for features in arm.features:
        for seed in study.seeds:
            yield Unit(arm, "WNUT-17", seed, features=features)
    for percent in arm.points:
        for task in arm.point_tasks:
            yield from (Unit(arm, task, seed, percent) for seed in study.seeds)


def settings_of(unit: Unit, study: Plan) -> dict[str, object]:
    """Returns the settings that determine a unit's result, as JSON values.

    A unit's entry in a file of results has its settings, so that results of other settings are
    noticed. Folders are not settings.
    """
    if not unit.task:
        return pretraining_settings(unit.arm, study)
    if unit.features:
        return {
            "features": unit.features,
            "epochs": study.tagger_epochs * study.scale,
            "units": study.tagger_units,
        }
    task = TASKS[unit.task]
    return {
        **task.flags,
        "num_train_epochs": task.epochs * study.scale,
        "learning_rate": study.fine_tuning_rates[unit.arm.size],
    }


def pretraining_settings(arm: Arm, study: Plan) -> dict[str, object]:
    """Returns the settings of an arm's pre-training.

    Without an objective, there is no training, and the initial weights are those of `mlm_nsp`.
    """
    settings = {
        "bert_config": arm.size,
        "objective": arm.objective or "mlm_nsp",
        "records": arm.records,
        "held_out": list(study.held_out),
        "vocab_size": study.vocab_size,
        "passes": study.passes,
        "random_seed": 0,
    }
    if arm.objective is None:
        return {**settings, "num_train_steps": 1, "learning_rate": 0.0}
    recipe = plan.read_recipe(study.recipe_of(arm))
    rate = study.pretraining_rates[arm.size]
    return {
        **settings,
        "recipe": recipe,
        "recipe_scale": study.scale_of(arm),
        "learning_rate": rate,
    }


def estimated_seconds(unit: Unit, study: Plan) -> float:
    """Returns the time of a unit on one core in the budget, in seconds."""
    arm = unit.arm
    if not unit.task:
        step, evaluation = plan.STEP_SECONDS.get((arm.size, arm.objective), (0, 0))
        return plan.START_SECONDS + study.steps_of(arm) * step + plan.EVALUATIONS * evaluation
    if unit.features:
        return plan.FEATURE_SECONDS * study.scale
    return plan.FINE_TUNING_SECONDS.get(arm.size, {}).get(unit.task, 0.0) * study.scale
