"""Compares students that learn from a teacher with the same students trained on labels alone.

    .venv/bin/python benchmarks/distillation.py [--tasks=MRPC,STS-B,CoLA] [--work_dir=/tmp/distil]

The teacher of each task is MiniLM (6 layers, hidden size 384), fine-tuned with seed 0. The students
start from its layers 1, 3 and 5 before fine-tuning (`convert --keep_layers`), and train with
run_classifier.py for `--epochs` epochs, once for each seed: `plain` on the labels, `distilled` with
--teacher and its default settings, `hidden` with --hidden_state_weight=1 too. All are scored on the
whole development set with the weights after the last epoch, so the scored set selects no weights.

Each finished run is a line of runs.jsonl in `--work_dir`: the same command runs only the missing
runs. At the end, the teacher and a distilled student of the first task are exported, and answer
the texts of its development set in turn, for the table of their speed.
"""

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags
from whole_runs import do_runs, mean_and_spread, run_ours
from workers import MODEL, ROOT

flags.DEFINE_list("tasks", ["MRPC", "STS-B", "CoLA"], "GLUE tasks")
flags.DEFINE_list("students", ["plain", "distilled", "hidden"], "kinds of students")
flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run of each kind")
flags.DEFINE_integer("epochs", 4, "passes over the training examples", lower_bound=1)
flags.DEFINE_integer("rounds", 5, "rounds of the speed's measurement", lower_bound=1)
flags.DEFINE_string("glue_dir", str(ROOT.parent / "shared/data/glue"), "GLUE's folder")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_distillation", "folder of the runs")
FLAGS = flags.FLAGS

LAYERS = "1,3,5"
# The flags of each kind of student besides --teacher, which plain students do not have.
STUDENTS = {"plain": {}, "distilled": {}, "hidden": {"hidden_state_weight": 1.0}}


def folder_of(job: Mapping) -> Path:
    """Returns the output folder of a run."""
    return Path(FLAGS.work_dir) / f"{job['task']}-{job['kind']}-{job['seed']}"


def run(job: Mapping) -> dict:
    """Fine-tunes with a job's task, kind and seed; returns the scores after the last epoch."""
    task, kind = job["task"], job["kind"]
    own: dict[str, object] = {"num_train_epochs": FLAGS.epochs, "do_predict": False}
    if kind != "teacher":
        own["init_checkpoint"] = student_start()
    if kind in ("distilled", "hidden"):
        own["teacher"] = folder_of({"task": task, "kind": "teacher", "seed": 0})
        own |= STUDENTS[kind]
    own |= {"task_name": task, "data_dir": Path(FLAGS.glue_dir) / task}
    figures = run_ours("run_classifier.py", folder_of(job), job["seed"], **own)
    rows = map(json.loads, (folder_of(job) / "metrics.jsonl").read_text().splitlines())
    scored = [row for row in rows if "eval_score" in row][-1]
    return {"score": scored["eval_score"], **figures}


def student_start() -> Path:
    """Writes the initial model of the students, and returns its folder."""
    folder = Path(FLAGS.work_dir) / "start"
    if not folder.exists():
        convert = [ROOT / ".venv/bin/python", "-m", "keras_bert.checkpoints.convert"]
        command = [*convert, MODEL, folder, f"--keep_layers={LAYERS}"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return folder


def report(runs: list[dict]) -> None:
    """Prints the scores of the teacher and the students of each task."""
    print("\nscore of GLUE in points, mean ± standard deviation over the seeds\n")
    print("| task | teacher | " + " | ".join(FLAGS.students) + " | distilled - plain, each seed |")
    print("| " + " | ".join(["---"] * (3 + len(FLAGS.students))) + " |")
    for task in FLAGS.tasks:
        scores = {
            kind: np.array(
                [100 * r["score"] for r in runs if (r["task"], r["kind"]) == (task, kind)]
            )
            for kind in ("teacher", *FLAGS.students)
        }
        cells = [f"{scores['teacher'][0]:.1f}"]
        cells += [mean_and_spread(scores[kind]) for kind in FLAGS.students]
        gains = scores["distilled"] - scores["plain"]
        cells.append(", ".join(f"{gain:+.1f}" for gain in gains))
        print(f"| {task} | {' | '.join(cells)} |")


def report_speed(task: str) -> None:
    """Prints the rates at which exports of teacher and student answer, in turn."""
    import keras_bert
    from keras_bert.tasks.classification.glue import find_task
    from keras_bert.tasks.classification.texts import read_glue

    models = {}
    for kind in ("teacher", "distilled"):
        folder = folder_of({"task": task, "kind": kind, "seed": 0})
        export = folder / "export" / "1"
        if not export.exists():
            keras_bert.load(folder).export(export)
        models[kind] = keras_bert.load(export)
    splits = read_glue(
        find_task(task), Path(FLAGS.glue_dir) / task, train=False, dev=True, test=False
    )
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
        {"task": task, "kind": kind, "seed": int(seed), "epochs": FLAGS.epochs}
        for task in FLAGS.tasks
        for kind in ("teacher", *FLAGS.students)
        for seed in (FLAGS.seeds if kind != "teacher" else ["0"])
    ]
    report(do_runs(FLAGS.work_dir, jobs, run))
    report_speed(FLAGS.tasks[0])


if __name__ == "__main__":
    app.run(main)
