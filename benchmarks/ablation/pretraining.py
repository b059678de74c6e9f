"""Pre-trains an arm, and finds its model and its checkpoints."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ablation.corpus import HELD_OUT, Folders, prepare_records
from ablation.plan import EVALUATIONS, Arm, Phase, Plan
from ablation.programs import run_program
from ablation.results import Result
from ablation.units import pretraining_settings

# Settings that determine the records or the recipe, and are not flags of run_pretraining.py.
_OTHER = ("records", "held_out", "vocab_size", "passes", "recipe")


def run_folder(arm: Arm, folders: Folders) -> Path:
    """Returns the folder of an arm's pre-training run."""
    return folders.work / "pretraining" / arm.name


def is_trained(arm: Arm, folders: Folders) -> bool:
    """Returns whether the folder has the finished run of an arm."""
    return (run_folder(arm, folders) / "results.json").is_file()


def checkpoint(arm: Arm, percent: int, study: Plan, folders: Folders) -> Path:
    """Returns the model of an arm, or its checkpoint after a share of the steps of all phases."""
    folder = run_folder(arm, folders)
    if percent == 100:
        return folder
    step, number, interval = study.steps_of(arm) * percent // 100, 1, study.checkpoint_interval(arm)
    for phase in study.phases_of(arm):
        if step <= phase.steps:
            break
        step, number = step - phase.steps, number + 1
    step = max(interval, step // interval * interval)  # A scaled share may have no checkpoint.
    return folder / f"phase-{number}" / "checkpoints" / f"step-{step:08}"


def pretrain(arm: Arm, study: Plan, folders: Folders) -> Result:
    """Pre-trains an arm, or resumes its run.

    Returns:
        The final held-out figures, and "curve": the held-out figures of each checkpoint, with the
        length of the sequences. The time is that of the training steps, or that of the last start
        if it was longer.
    """
    folder = run_folder(arm, folders)
    flags = {
        name: value
        for name, value in pretraining_settings(arm, study).items()
        if name not in _OTHER
    }
    flags |= {
        "input_file": prepare_records(arm.records, study, folders),
        "eval_file": prepare_records(HELD_OUT, study, folders),
        "output_dir": folder,
        "mixed_precision": "bfloat16",
        "save_checkpoints_steps": study.checkpoint_interval(arm),
        "keep_checkpoint_max": EVALUATIONS if arm.points else 1,
    }
    if arm.objective:
        flags["recipe"] = study.recipe_of(arm)
        phases = {
            folder / f"phase-{number}": phase
            for number, phase in enumerate(study.phases_of(arm), 1)
        }
    else:  # One step with the records of the last phase saves the initial weights.
        last = study.phases_of(arm)[-1]
        phases = {folder: replace(last, steps=1)}
        flags |= {"max_seq_length": last.length, "train_batch_size": last.batch}
        for name in ("input_file", "eval_file"):
            flags[name] = flags[name].format(max_seq_length=last.length)
    usage = run_program("run_pretraining.py", flags, folders.log)
    figures = json.loads((folder / "results.json").read_text())
    training, seconds = _training_figures(phases)
    return Result(
        {**figures, **training},
        round(max(seconds, usage.seconds), 1),
        cpu_seconds=round(usage.cpu_seconds, 1),
    )


def _training_figures(phases: Mapping[Path, Phase]) -> tuple[dict, float]:
    """Returns the figures of a run from its folder of each phase, and the time of its steps.

    The figures are "step", "curve" and "tokens_per_second", which counts padding.
    """
    curve, start, tokens, seconds = [], 0, 0, 0.0
    for folder, phase in phases.items():
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        curve += [
            {**row, "step": start + row["step"], "length": phase.length}
            for row in rows
            if "eval_loss" in row
        ]
        steps, time = _training_time(rows, phase.batch)
        tokens, seconds = tokens + steps * phase.batch * phase.length, seconds + time
        start += phase.steps
    rate = tokens / seconds if seconds else 0.0
    return {"step": start, "curve": curve, "tokens_per_second": rate}, seconds


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
