"""Compares students that learn from a teacher with the same students trained on labels alone.

    .venv/bin/python benchmarks/distillation.py [--tasks=SST-2,WNUT-17] [--work_dir=/tmp/distil]

The teacher of each task is MiniLM (6 layers, hidden size 384), fine-tuned with seed 0 in float32.
The students start from its layers 1, 3 and 5 before fine-tuning (`convert --keep_layers`), and
train for `--epochs` epochs with a peak of `--learning_rate`, once for each seed: `plain` on the
labels, and `distilled` with --teacher and its default settings. All are scored on the whole
development set with the weights after the last epoch, so the scored set selects no weights.

Each finished run is a line of runs.jsonl in `--work_dir`: the same command runs only the missing
runs. With --speed_task, the teacher and a distilled student of a task of GLUE are exported at the
end, and answer the texts of its development set in turn.
"""

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags
from fine_tuning_tasks import DATA, run_task
from whole_runs import do_runs, mean_and_spread
from workers import MODEL, ROOT

flags.DEFINE_list("tasks", ["STS-B", "CoLA", "SST-2", "WNUT-17"], "tasks")
flags.DEFINE_string("speed_task", "", "the task of GLUE whose models are timed; empty for none")
flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run of each kind")
flags.DEFINE_integer("epochs", 5, "passes of a student over the examples", lower_bound=1)
flags.DEFINE_integer("teacher_epochs", 3, "passes of a teacher over the examples", lower_bound=1)
flags.DEFINE_float("learning_rate", 1e-4, "peak learning rate of the students", lower_bound=0.0)
flags.DEFINE_enum(
    "mixed_precision", "bfloat16", ["float32", "bfloat16"], "compute type of the students"
)
flags.DEFINE_integer("rounds", 5, "rounds of the speed's measurement", lower_bound=1)
flags.DEFINE_string("work_dir", "/tmp/keras_bert_distillation", "folder of the runs")
FLAGS = flags.FLAGS

LAYERS = "1,3,5"
STUDENTS = ("plain", "distilled")


def folder_of(job: Mapping) -> Path:
    """Returns the output folder of a run."""
    return Path(FLAGS.work_dir) / "-".join(map(str, job.values()))


def job_of(task: str, kind: str, seed: int) -> dict:
    """Returns the values that identify a run."""
    job = {"task": task, "kind": kind, "seed": seed}
    if kind == "teacher":
        return {**job, "epochs": FLAGS.teacher_epochs}
    own = {"learning_rate": FLAGS.learning_rate, "mixed_precision": FLAGS.mixed_precision}
    return {**job, "epochs": FLAGS.epochs, **own}


def run(job: Mapping) -> dict:
    """Fine-tunes with a job's task, kind and seed; returns the score after the last epoch."""
    kind, own = job["kind"], {}
    if kind != "teacher":
        own = {"init_checkpoint": student_start()}
        own |= {name: job[name] for name in ("learning_rate", "mixed_precision")}
    if kind == "distilled":
        own["teacher"] = folder_of(job_of(job["task"], "teacher", 0))
    return run_task(job["task"], folder_of(job), job["seed"], job["epochs"], **own)


def student_start() -> Path:
    """Writes the initial model of the students, and returns its folder."""
    folder = Path(FLAGS.work_dir) / "start"
    if not folder.exists():
        convert = [ROOT / ".venv/bin/python", "-m", "keras_bert", "convert"]
        command = [*convert, MODEL, folder, f"--keep_layers={LAYERS}"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return folder


def report(runs: list[dict]) -> None:
    """Prints the scores of the teacher and the students of each task."""
    print("\nscores in points, mean ± standard deviation over the seeds\n")
    columns = ("task", "teacher", *STUDENTS, "distilled - plain", "each seed")
    print(f"| {' | '.join(columns)} |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for task in FLAGS.tasks:
        scores = {
            kind: np.array(
                [100 * r["score"] for r in runs if (r["task"], r["kind"]) == (task, kind)]
            )
            for kind in ("teacher", *STUDENTS)
        }
        cells = [f"{scores['teacher'][0]:.1f}"]
        cells += [mean_and_spread(scores[kind]) for kind in STUDENTS]
        gains = scores["distilled"] - scores["plain"]
        cells += [f"{gains.mean():+.1f}", ", ".join(f"{gain:+.1f}" for gain in gains)]
        print(f"| {task} | {' | '.join(cells)} |")


def report_speed(task: str) -> None:
    """Prints the rates at which exports of teacher and student answer, in turn."""
    import keras_bert
    from keras_bert.tasks.classification.glue import find_task, read_glue

    models = {}
    for kind in ("teacher", "distilled"):
        folder = folder_of(job_of(task, kind, 0))
        export = folder / "export" / "1"
        if not export.exists():
            keras_bert.load(folder).export(export)
        models[kind] = keras_bert.load(export)
    splits = read_glue(find_task(task), DATA / "glue" / task, train=False, dev=True, test=False)
    dev = splits.dev[""]
    texts = dev.first if dev.second is None else (dev.first, dev.second)
    for batch_size in (1, 64):
        seconds: dict[str, list[float]] = {kind: [] for kind in models}
        for round_ in range(FLAGS.rounds + 1):
            for kind, model in models.items():
                start = time.perf_counter()
                model.predict(texts, batch_size=batch_size)
                if round_:  # The first round compiles.
                    seconds[kind].append(time.perf_counter() - start)
        rates = {kind: len(dev) / median(values) for kind, values in seconds.items()}
        print(
            f"batch {batch_size}: teacher {rates['teacher']:.0f} texts/s, student "
            f"{rates['distilled']:.0f} texts/s, {rates['distilled'] / rates['teacher']:.2f} x"
        )


def main(_: list[str]) -> None:
    """Does the missing runs, and prints the tables."""
    jobs = [
        job_of(task, kind, int(seed))
        for task in FLAGS.tasks
        for kind in ("teacher", *STUDENTS)
        for seed in (FLAGS.seeds if kind != "teacher" else ["0"])
    ]
    report(do_runs(FLAGS.work_dir, jobs, run))
    if FLAGS.speed_task:
        report_speed(FLAGS.speed_task)


if __name__ == "__main__":
    app.run(main)
