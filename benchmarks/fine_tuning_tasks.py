"""Defines fine-tuning tasks for distillation.py and precisions.py, and runs them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from whole_runs import run_ours
from workers import ROOT

DATA = ROOT.parent / "shared/data"
_NER, _SQUAD = DATA / "ner/wnut17", DATA / "squad"


@dataclass(frozen=True)
class Task:
    """A task: its program, the program's flags, and the score's name in metrics.jsonl."""

    program: str
    flags: Mapping[str, object]
    score: str
    percent: bool = False


def _glue(name: str) -> Task:
    given = {"task_name": name, "data_dir": DATA / "glue" / name}
    return Task("run_classifier.py", {**given, "do_predict": False}, "eval_score")


TASKS = {name: _glue(name) for name in ("MRPC", "STS-B", "CoLA", "RTE", "SST-2")}
TASKS["WNUT-17"] = Task(
    "run_ner.py",
    {"train_file": _NER / "wnut17train.conll", "eval_file": _NER / "emerging.dev.conll"},
    "eval_f1",
)
TASKS["SQuAD"] = Task(
    "run_squad.py",
    {
        "train_file": _SQUAD / "squad2_cs224n_dev.json",
        "predict_file": _SQUAD / "xquad.en.json",
        "max_seq_length": 384,
    },
    "eval_f1",
    percent=True,
)


def run_task(name: str, folder: Path, seed: int, epochs: int, **flags: object) -> dict:
    """Fine-tunes for a task in `folder` with a seed.

    Returns the figures of `run_ours`, and "score" of the development set after the last epoch, from
    0 to 1. `flags` are further flags of the program.
    """
    task = TASKS[name]
    figures = run_ours(task.program, folder, seed, num_train_epochs=epochs, **task.flags, **flags)
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    scored = [row for row in rows if task.score in row][-1]
    return {"score": scored[task.score] / (100 if task.percent else 1), **figures}
