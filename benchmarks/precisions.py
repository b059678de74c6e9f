"""Compares the scores of fine-tuning in bfloat16 and in float32.

    .venv/bin/python benchmarks/precisions.py [--tasks=MRPC,CoLA] [--work_dir=/tmp/precisions]

MiniLM (6 layers, hidden size 384) is fine-tuned for three epochs with the settings of
whole_runs.py, once for each precision and seed. All runs are scored on the whole development set
with the weights after the last epoch, so the scored set selects no weights. loss_curve.py compares
the precisions in pre-training.

Each finished run is a line of runs.jsonl in `--work_dir`: the same command runs only the missing
runs.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from absl import app, flags
from fine_tuning_tasks import run_task
from whole_runs import do_runs, mean_and_spread

EPOCHS = 3
PRECISIONS = ("float32", "bfloat16")

flags.DEFINE_list("tasks", ["MRPC", "STS-B", "CoLA", "WNUT-17"], "tasks")
flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run of each precision")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_precisions", "folder of the runs")
FLAGS = flags.FLAGS


def run(job: Mapping) -> dict:
    """Fine-tunes with a job's task, precision and seed; returns the score and the speed."""
    folder = Path(FLAGS.work_dir) / f"{job['task']}-{job['mixed_precision']}-{job['seed']}"
    return run_task(
        job["task"], folder, job["seed"], EPOCHS, mixed_precision=job["mixed_precision"]
    )


def scores_of(runs: list[dict], task: str, precision: str) -> np.ndarray:
    """Returns the scores of a task and a precision in points, one for each seed."""
    key = (task, precision)
    found = [each for each in runs if (each["task"], each["mixed_precision"]) == key]
    return np.array([100 * each["score"] for each in found])


def report(runs: list[dict]) -> None:
    """Prints the scores of each task in both precisions, and their differences."""
    print("\nscores in points, mean ± standard deviation over the seeds\n")
    print("| task | float32 | bfloat16 | difference of the means | each seed |")
    print("| --- | --- | --- | --- | --- |")
    for task in FLAGS.tasks:
        scores = {precision: scores_of(runs, task, precision) for precision in PRECISIONS}
        differences = scores["bfloat16"] - scores["float32"]
        cells = [mean_and_spread(scores[precision]) for precision in PRECISIONS]
        cells.append(f"{differences.mean():+.2f}")
        cells.append(", ".join(f"{difference:+.1f}" for difference in differences))
        print(f"| {task} | {' | '.join(cells)} |")


def main(_: list[str]) -> None:
    """Does the missing runs, and prints the table."""
    jobs = [
        {"task": task, "mixed_precision": precision, "seed": int(seed)}
        for task in FLAGS.tasks
        for seed in FLAGS.seeds
        for precision in PRECISIONS
    ]
    report(do_runs(FLAGS.work_dir, jobs, run))


if __name__ == "__main__":
    app.run(main)
