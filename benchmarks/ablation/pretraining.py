"""Pre-trains an arm, and finds its model and its checkpoints."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ablation.corpus import HELD_OUT, Folders, prepare_records
from ablation.plan import EVALUATIONS, Arm, Plan
from ablation.programs import run_program
from ablation.results import Result
from ablation.units import pretraining_settings

# Settings that determine the records, and are not flags of run_pretraining.py.
_OF_RECORDS = ("records", "held_out", "vocab_size", "passes")


def run_folder(arm: Arm, folders: Folders) -> Path:
    """Returns the folder of an arm's pre-training run."""
    return folders.work / "pretraining" / arm.name


def is_trained(arm: Arm, folders: Folders) -> bool:
    """Returns whether the folder has the finished run of an arm."""
    return (run_folder(arm, folders) / "results.json").is_file()


def checkpoint(arm: Arm, percent: int, study: Plan, folders: Folders) -> Path:
    """Returns the model of an arm, or its checkpoint after a share of the steps."""
    folder = run_folder(arm, folders)
    if percent == 100:
        return folder
    return folder / "checkpoints" / f"step-{study.steps_of(arm) * percent // 100:08}"


def pretrain(arm: Arm, study: Plan, folders: Folders) -> Result:
    """Pre-trains an arm, or resumes its run.

    Returns:
        The final held-out figures, and "curve": the held-out figures of each checkpoint. The time
        is that of the training steps, or that of the last start if it was longer.
    """
    folder, settings = run_folder(arm, folders), pretraining_settings(arm, study)
    flags = {name: value for name, value in settings.items() if name not in _OF_RECORDS}
    every = max(1, settings["num_train_steps"] // EVALUATIONS)
    flags |= {
        "input_file": prepare_records(arm.records, study, folders),
        "eval_file": prepare_records(HELD_OUT, study, folders),
        "output_dir": folder,
        "mixed_precision": "bfloat16",
        "save_checkpoints_steps": every,
        "keep_checkpoint_max": EVALUATIONS if arm.points else 1,
    }
    usage = run_program("run_pretraining.py", flags, folders.log)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figures = json.loads((folder / "results.json").read_text())
    figures["curve"] = [row for row in rows if "eval_loss" in row]
    steps, seconds = _training_time(rows, study.batch)
    figures["examples_per_second"] = steps * study.batch / seconds if seconds else 0.0
    return Result(
        figures, round(max(seconds, usage.seconds), 1), cpu_seconds=round(usage.cpu_seconds, 1)
    )


def _training_time(rows: Sequence[Mapping[str, float]], batch: int) -> tuple[int, float]:
    """Returns the number of logged steps, and the seconds they took, also before a kill.

    The rate in a line of metrics.jsonl is an average over the steps since the previous line, or
    since the checkpoint from which the run resumed.
    """
    steps, seconds, last = 0, 0.0, 0
    for row in rows:
        since = row["step"] - row.get("resumed_at_step", last)
        if row.get("examples_per_second"):
            steps, seconds = steps + since, seconds + since * batch / row["examples_per_second"]
        last = row["step"]
    return steps, seconds
