"""Computes the missing units of the study, one after the other.

A unit counts as finished when its result is in the file of its arm. Models are only in the work
folder: if it is lost, an arm is pre-trained again as soon as one of its units is missing, and its
recorded result stays as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ablation.corpus import Folders
from ablation.features import delete_features, train_tagger
from ablation.fine_tuning import delete_run, fine_tune
from ablation.plan import Arm, Plan
from ablation.pretraining import is_trained, pretrain
from ablation.results import Result, Results
from ablation.units import Unit, estimated_seconds, units_of

Compute = Callable[[Unit, Plan, Folders], Result]


@dataclass(frozen=True)
class Selection:
    """The arms and tasks that run; no arms means all arms that are not optional."""

    arms: Sequence[str] = ()
    tasks: Sequence[str] = ()

    def units(self, study: Plan) -> dict[Arm, list[Unit]]:
        """Returns {arm: its selected units}; an arm's pre-training is always among them."""
        arms = [study.arm(name) for name in self.arms] or [
            arm for arm in study.arms if not arm.is_optional
        ]
        return {
            arm: [
                unit
                for unit in units_of(arm, study)
                if not (unit.task and self.tasks and unit.task not in self.tasks)
            ]
            for arm in arms
        }


@dataclass(frozen=True)
class Computations:
    """The functions that compute units; tests replace them."""

    pretrain: Callable[[Arm, Plan, Folders], Result] = pretrain
    is_trained: Callable[[Arm, Folders], bool] = is_trained
    fine_tune: Compute = fine_tune
    train_tagger: Compute = train_tagger


def run_study(
    study: Plan,
    selection: Selection,
    results: Results,
    folders: Folders,
    computations: Computations = Computations(),
) -> None:
    """Computes the selected units that have no result, and records each when it is finished."""
    for arm, units in selection.units(study).items():
        missing = results.missing(units)
        if not missing:
            continue
        if not computations.is_trained(arm, folders) or missing[0] == Unit(arm):
            print(f"{arm.name}: pre-training", flush=True)
            result = computations.pretrain(arm, study, folders)
            if results.get(Unit(arm)) is None:
                results.record(Unit(arm), result)
        for unit in missing:
            if not unit.task:
                continue
            compute = computations.train_tagger if unit.features else computations.fine_tune
            result = compute(unit, study, folders)
            results.record(unit, result)
            delete_run(unit, folders)
            print(f"{arm.name}: {unit.key}: {result.seconds:.0f} s", flush=True)
        delete_features(arm.name, folders)


def list_units(study: Plan, selection: Selection, results: Results) -> Iterable[str]:
    """Yields the lines of --list: all units, and for each arm the time on one core in minutes.

    The columns of an arm are the estimated time of the budget, the recorded time of finished units,
    and the estimated time of the missing ones. The work folder is not considered: if it was lost,
    the pre-training of an arm with missing units is added when it runs again.
    """
    sums = [0.0, 0.0, 0.0]
    for arm, units in selection.units(study).items():
        found = {unit: results.get(unit) for unit in units}
        minutes = [
            sum(estimated_seconds(unit, study) for unit in units) / 60,
            sum(result.seconds for result in found.values() if result) / 60,
            sum(estimated_seconds(unit, study) for unit, got in found.items() if not got) / 60,
        ]
        sums = [a + b for a, b in zip(sums, minutes, strict=True)]
        done = sum(result is not None for result in found.values())
        yield f"{arm.name}: {done} of {len(units)} units done; {_times(minutes)}"
        for unit, result in found.items():
            state = f"done in {result.seconds:.0f} s" if result else "missing"
            yield f"  {unit.key:45} {estimated_seconds(unit, study):6.0f} s  {state}"
    yield f"all: {_times(sums)}, on one core"


def _times(minutes: Sequence[float]) -> str:
    budget, used, remaining = minutes
    return f"budget {budget:.0f} min, used {used:.0f} min, remaining {remaining:.0f} min"
