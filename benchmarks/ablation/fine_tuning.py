"""Fine-tunes the model of an arm on a task with one seed."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from ablation.corpus import Folders, task_files
from ablation.plan import TASKS, Plan
from ablation.pretraining import checkpoint
from ablation.programs import run_program
from ablation.results import Result
from ablation.units import Unit, settings_of

_EVALUATION = "eval_"
_OF_A_TYPE = ("precision_", "recall_", "f1_")


def fine_tune(unit: Unit, study: Plan, folders: Folders) -> Result:
    """Fine-tunes a unit's model, or resumes its run.

    Returns:
        "last": the development scores of the last epoch, which select no weights; "best": those of
        the best epoch; "test": the test scores of the weights of the best epoch, if there is a
        tagged test set.
    """
    folder = _run_folder(unit, folders)
    flags = {
        **settings_of(unit, study),
        **task_files(unit.task, folders),
        "init_checkpoint": checkpoint(unit.arm, unit.percent, study, folders),
        "output_dir": folder,
        "random_seed": unit.seed,
        "mixed_precision": "bfloat16",
    }
    usage = run_program(TASKS[unit.task].program, flags, folders.log)
    return Result(_figures(folder), round(usage.seconds, 1), round(usage.cpu_seconds, 1))


def delete_run(unit: Unit, folders: Folders) -> None:
    """Deletes the run of a unit whose result is recorded.

    The folder is renamed first, so that a kill never leaves a part of a run to resume.
    """
    folder = _run_folder(unit, folders)
    deleted = folder.with_name(f"{folder.name}.deleted")
    shutil.rmtree(deleted, ignore_errors=True)  # Left by a kill.
    if folder.exists():
        folder.rename(deleted)
        shutil.rmtree(deleted)


def _run_folder(unit: Unit, folders: Folders) -> Path:
    return folders.work / "fine_tuning" / unit.arm.name / unit.key.replace("/", "-")


def overall(scores: Mapping[str, float]) -> dict[str, float]:
    """Returns scores without those of single entity types, such as f1_person."""
    return {name: value for name, value in scores.items() if not name.startswith(_OF_A_TYPE)}


def _figures(folder: Path) -> dict[str, dict[str, float]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    evaluated = [
        {
            name.removeprefix(_EVALUATION): value
            for name, value in row.items()
            if name.startswith(_EVALUATION)
        }
        for row in rows
    ]
    files = {"best": folder / "results.json", "test": folder / "test_results.json"}
    return {
        "last": overall([row for row in evaluated if row][-1]),
        **{
            name: overall(json.loads(path.read_text()))
            for name, path in files.items()
            if path.exists()
        },
    }
