"""Compares scores and speed of fine-tuning with transformers, and of embeddings with its library.

    .venv/bin/python benchmarks/scores.py [--tasks=MRPC,WNUT-17] [--seeds=0,1,2] [--work_dir=DIR]
    .venv/bin/python benchmarks/scores.py --contenders=ours_float32,ours_bfloat16   # precisions

All contenders start from MiniLM (all-MiniLM-L6-v2: six layers, hidden size 384) and train with
batch size 16, dropout 0.1, a linear warm-up over 10 % of the steps, then linear decay, gradients
clipped to norm 1, and AdamW (bias-corrected, epsilon 1e-6, weight decay 0.01 except on biases and
LayerNorm). keras_bert runs its programs with their defaults (batches by length, XLA). The others
are plain torch loops (scores_torch.py) with shuffled batches, each padded to its longest example;
bfloat16 is autocast there. The task `embeddings` trains on the scored pairs of STS-B with the
CoSENT loss, compared with sentence-transformers' model and loss.

All tasks are scored on the whole development set, with the weights after the last epoch, so that
the scored set selects no weights. SST-2 trains on 4,000 of its rows. SQuAD trains on the answerable
questions of squad2_cs224n_dev.json and is scored on xquad.en.json.

torch's learning rate peaks at 5e-5, and starts to decay at the end of the warm-up. keras_bert's
schedule, which is Google's, counts the decay from step 0, so that the rate at the end of the
warm-up is 0.9 times the flag's value. The flag is therefore 5e-5 / 0.9: after the warm-up, all
contenders have the same rate at every step.

Examples per second exclude evaluations; seconds are those of the whole program. Each finished run
is a line of runs.jsonl in --work_dir: the same command runs only the missing runs.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import numpy as np
from absl import app, flags
from texts import DATA
from workers import MODEL, ROOT, check_names, python_of, table

BATCH, LEARNING_RATE, WARMUP = 16, 5e-5, 0.1
CONTENDERS = ("ours_float32", "ours_bfloat16", "torch_float32", "torch_bfloat16")
SST2_EXAMPLES = 4000


class Task(NamedTuple):
    """A task: its program, the program's flags, the metrics and the number of epochs."""

    program: str
    flags: Mapping[str, object]
    metrics: tuple[str, ...]
    epochs: float = 3
    percent: bool = False  # Whether the metrics are in percent.


def glue(name: str, *metrics: str) -> Task:
    """Returns a task of GLUE."""
    flags = {"task_name": name, "data_dir": DATA / "glue" / name, "do_predict": False}
    return Task("run_classifier.py", {**flags, "max_seq_length": 128}, metrics)


TASKS = {
    "MRPC": glue("MRPC", "accuracy", "f1"),
    "RTE": glue("RTE", "accuracy"),
    "CoLA": glue("CoLA", "matthews_corrcoef"),
    "STS-B": glue("STS-B", "pearson", "spearman"),
    "SST-2": glue("SST-2", "accuracy"),
    "WNUT-17": Task(
        "run_ner.py",
        {
            "train_file": DATA / "ner/wnut17/wnut17train.conll",
            "eval_file": DATA / "ner/wnut17/emerging.dev.conll",
            "max_seq_length": 128,
        },
        ("f1",),
    ),
    "SQuAD": Task(
        "run_squad.py",
        {
            "train_file": DATA / "squad/squad2_cs224n_dev.json",
            "eval_file": DATA / "squad/xquad.en.json",
            "max_seq_length": 384,
            "doc_stride": 128,
        },
        ("exact", "f1"),
        epochs=2,
        percent=True,
    ),
    "embeddings": Task(
        "run_embedding.py",
        {
            "train_file": DATA / "glue/STS-B/train.tsv",
            "eval_file": DATA / "glue/STS-B/dev.tsv",
            "columns": "text_a=sentence1,text_b=sentence2",
            "loss": "cosent",
            "score_range": "0,5",
            "max_seq_length": 128,
        },
        ("spearman",),
        epochs=1,
    ),
}

flags.DEFINE_list("tasks", list(TASKS), f"tasks, from {', '.join(TASKS)}")
flags.DEFINE_list("contenders", list(CONTENDERS), f"contenders, from {', '.join(CONTENDERS)}")
flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run of each contender per seed")
flags.DEFINE_float("epochs", None, "passes over the training examples; default: those of the task")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_scores", "folder of the runs and of runs.jsonl")
FLAGS = flags.FLAGS


def sst2_subset() -> Path:
    """Returns a folder of SST-2 with SST2_EXAMPLES random training rows."""
    source, folder = DATA / "glue/SST-2", Path(FLAGS.work_dir) / f"SST-2-{SST2_EXAMPLES}"
    if not (folder / "train.tsv").exists():
        header, *rows = (source / "train.tsv").read_text(encoding="utf-8").splitlines(True)
        sample = sorted(np.random.default_rng(0).permutation(len(rows))[:SST2_EXAMPLES])
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / "dev.tsv", folder / "dev.tsv")
        text = header + "".join(rows[row] for row in sample)
        (folder / "train.tsv").write_text(text, encoding="utf-8")
    return folder


def run(job: Mapping) -> dict:
    """Runs a job; returns {metric: score}, and the speed."""
    task = TASKS[job["task"]]
    task_flags = dict(task.flags)
    if job["task"] == "SST-2":
        task_flags["data_dir"] = sst2_subset()
    start = time.perf_counter()
    if job["contender"].startswith("ours"):
        figures = run_ours(task, task_flags, job)
    else:
        settings = json.dumps({**job, "flags": task_flags}, default=str)
        command = [python_of("torch"), Path(__file__).with_name("scores_torch.py"), settings]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        figures = json.loads(done.stdout.splitlines()[-1])
    return {**figures, "seconds": time.perf_counter() - start}


def run_ours(task: Task, task_flags: Mapping[str, object], job: Mapping) -> dict:
    """Fine-tunes with a program of keras_bert."""
    folder = Path(FLAGS.work_dir) / "-".join(str(value) for value in job.values())
    shutil.rmtree(folder, ignore_errors=True)  # A resumed run would train only the rest.
    settings = {
        "init_checkpoint": MODEL,
        "output_dir": folder,
        "train_batch_size": BATCH,
        "num_train_epochs": job["epochs"],
        "learning_rate": LEARNING_RATE / (1 - WARMUP),
        "warmup_proportion": WARMUP,
        "mixed_precision": job["contender"].removeprefix("ours_"),
        "random_seed": job["seed"],
        **task_flags,
    }
    command = [python_of("ours"), ROOT / task.program]
    command += [f"--{name}={value}" for name, value in settings.items()]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scored = [row for row in rows if f"eval_{task.metrics[0]}" in row][-1]
    # The rate in a line is an average over the steps since the previous line.
    steps, seconds, last = 0, 0.0, 0
    for row in rows:
        if "examples_per_second" in row:
            steps += row["step"] - last
            seconds += (row["step"] - last) * BATCH / row["examples_per_second"]
        last = row["step"]
    scores = {metric: scored[f"eval_{metric}"] for metric in task.metrics}
    return {"scores": scores, "examples_per_second": steps * BATCH / seconds if seconds else 0.0}


def do_runs() -> list[dict]:
    """Does the runs that are missing from runs.jsonl; returns each job with its figures."""
    log = Path(FLAGS.work_dir) / "runs.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    logged = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    runs = []
    for index, seed in enumerate(FLAGS.seeds):
        # The order alternates, in case the machine slows down.
        contenders = FLAGS.contenders[:: -1 if index % 2 else 1]
        for task in FLAGS.tasks:
            epochs = FLAGS.epochs or TASKS[task].epochs
            for contender in contenders:
                job = {"task": task, "contender": contender, "seed": int(seed), "epochs": epochs}
                line = next((line for line in logged if job.items() <= line.items()), None)
                if line is None:
                    line = {**job, **run(job)}
                    with open(log, "a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
                    print(json.dumps(line), file=sys.stderr, flush=True)
                runs.append(line)
    return runs


def report(runs: list[dict]) -> None:
    """Prints the scores with their spread, and the speed, of each task and contender."""
    print("\nscores in points, mean ± standard deviation over seeds; median speed\n")
    rows = []
    for name in FLAGS.tasks:
        task = TASKS[name]
        by_contender = [
            [run for run in runs if (run["task"], run["contender"]) == (name, contender)]
            for contender in FLAGS.contenders
        ]
        for metric in task.metrics:
            factor = 1 if task.percent else 100
            scores = [[factor * run["scores"][metric] for run in same] for same in by_contender]
            rows.append([f"{name}, {metric}", *map(mean_and_spread, scores)])
        for speed in ("examples_per_second", "seconds"):
            medians = (median(run[speed] for run in same) for same in by_contender)
            rows.append([f"{name}, {speed.replace('_', ' ')}", *(f"{m:.1f}" for m in medians)])
    table(["task, metric or speed", *FLAGS.contenders], rows)


def mean_and_spread(values: Sequence[float]) -> str:
    """Formats the mean and the sample standard deviation."""
    return f"{mean(values):.1f} ± {stdev(values) if len(values) > 1 else 0.0:.1f}"


def main(_) -> None:
    """Does the missing runs, and prints the table."""
    check_names("tasks", FLAGS.tasks, TASKS)
    check_names("contenders", FLAGS.contenders, CONTENDERS)
    report(do_runs())


if __name__ == "__main__":
    app.run(main)
