"""Fine-tunes the model of an arm on a task with one seed."""

import json
import shutil
from pathlib import Path

from ablation.corpus import Folders, task_files
from ablation.plan import TASKS, Plan
from ablation.pretraining import checkpoint
from ablation.programs import run_program
from ablation.results import Result
from ablation.units import Unit, settings_of

_EVALUATION = "eval_"


def fine_tune(unit: Unit, study: Plan, folders: Folders) -> Result:
    """Fine-tunes a unit's model, or resumes its run; deletes the run at the end.

    Returns:
        "last": the development scores of the last epoch, which select no weights; "best": those of
        the best epoch; "test": the test scores of the weights of the best epoch, if there is a
        tagged test set.
    """
    folder = folders.work / "fine_tuning" / unit.arm.name / unit.key.replace("/", "-")
    flags = {
        **settings_of(unit, study),
        **task_files(unit.task, folders),
        "init_checkpoint": checkpoint(unit.arm, unit.percent, study, folders),
        "output_dir": folder,
        "random_seed": unit.seed,
        "mixed_precision": "bfloat16",
    }
    usage = run_program(TASKS[unit.task].program, flags, folders.log)
    figures = _figures(folder)
    shutil.rmtree(folder)
    return Result(figures, round(usage.seconds, 1), round(usage.cpu_seconds, 1))


def _figures(folder: Path) -> dict[str, dict[str, float]]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    evaluated = [row for row in rows if any(name.startswith(_EVALUATION) for name in row)]
    figures = {
        "last": {
            name.removeprefix(_EVALUATION): value
            for name, value in evaluated[-1].items()
            if name.startswith(_EVALUATION)
        },
        "best": json.loads((folder / "results.json").read_text()),
    }
    test = folder / "test_results.json"
    return figures | ({"test": json.loads(test.read_text())} if test.exists() else {})
