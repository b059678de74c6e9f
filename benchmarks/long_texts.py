"""Compares the ways to classify texts that are longer than the window, on passages of books.

    .venv/bin/python benchmarks/long_texts.py [--seeds=0,1,2] [--work_dir=/tmp/long_texts]

The task is to name the book of a passage. `--num_books` books of gutenberg-85, the first ones by
file name with enough text, are split into passages of `--words` words. The first four fifths of a
book have `--train_passages` for training, the last fifth `--dev_passages` for development, both
evenly spaced. MiniLM (6 layers, hidden size 384) is fine-tuned with run_classifier.py for `--steps`
steps of 16 examples; a window has `--window` tokens, about a tenth of a passage. With `windows`, an
example is one window of a passage, so that a step has as many tokens as with the others, but an
epoch has more steps.

The score is the accuracy on the development passages after the last step. Each finished run is a
line of runs.jsonl in `--work_dir`: the same command runs only the missing runs.
"""

import csv
import json
import lzma
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from absl import app, flags
from whole_runs import do_runs, mean_and_spread, run_ours
from workers import ROOT

KINDS = ("truncate", "head_tail", "windows")

flags.DEFINE_list("kinds", [*KINDS], "ways to classify long texts")
flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run of each kind")
flags.DEFINE_integer("num_books", 30, "number of books, the classes", lower_bound=2)
flags.DEFINE_integer("words", 512, "number of words in a passage", lower_bound=10)
flags.DEFINE_integer("train_passages", 24, "training passages of a book", lower_bound=1)
flags.DEFINE_integer("dev_passages", 8, "development passages of a book", lower_bound=1)
flags.DEFINE_integer("window", 64, "number of tokens in a window", lower_bound=3)
flags.DEFINE_integer("steps", 990, "training steps", lower_bound=1)
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "compute type")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_long_texts", "folder of the data and the runs")
FLAGS = flags.FLAGS

DATA_FLAGS = ("num_books", "words", "train_passages", "dev_passages")
CORPUS = ROOT.parent / "shared" / "data" / "corpus" / "gutenberg-85"


def passages(path: Path) -> list[str]:
    """Returns the passages of a book, without Project Gutenberg's header and licence."""
    with lzma.open(path, "rt", encoding="utf-8", errors="replace") as file:
        text = file.read()
    parts = re.split(r"\*\*\* ?(?:START|END) OF .*? \*\*\*", text)
    words = (parts[1] if len(parts) > 1 else text).split()
    size = FLAGS.words
    return [" ".join(words[at : at + size]) for at in range(0, len(words) - size + 1, size)]


def data_folder() -> Path:
    """Returns the folder of the data, which has the sizes in its name."""
    return Path(FLAGS.work_dir) / "-".join(
        ["data", *(str(FLAGS[name].value) for name in DATA_FLAGS)]
    )


def write_data(folder: Path) -> None:
    """Writes train.csv and dev.csv."""
    rows: dict[str, list[tuple[str, str]]] = {"train": [], "dev": []}
    books = 0
    for path in sorted(CORPUS.glob("*.txt.xz")):
        found = passages(path)
        split = len(found) * 4 // 5
        if split < FLAGS.train_passages or len(found) - split < FLAGS.dev_passages:
            continue
        for name, part, count in (
            ("train", found[:split], FLAGS.train_passages),
            ("dev", found[split:], FLAGS.dev_passages),
        ):
            chosen = np.linspace(0, len(part) - 1, count).astype(int)
            rows[name] += [(part[place], path.name.split(".")[0]) for place in chosen]
        books += 1
        if books == FLAGS.num_books:
            break
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in rows.items():
        with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *pairs])


def run(job: Mapping) -> dict:
    """Fine-tunes with a job's kind and seed; returns the accuracy and the speed."""
    data, kind = data_folder(), job["kind"]
    own: dict[str, object] = {"long_text": kind, "num_train_steps": FLAGS.steps}
    own["mixed_precision"] = FLAGS.precision
    if kind == "windows":
        own["window_stride"] = FLAGS.window - 2  # Windows do not overlap.
    output_dir = Path(FLAGS.work_dir) / f"{kind}-{job['seed']}"
    figures = run_ours(
        "run_classifier.py",
        output_dir,
        job["seed"],
        task_name="custom",
        train_file=data / "train.csv",
        eval_file=data / "dev.csv",
        max_seq_length=FLAGS.window,
        do_predict=False,
        **own,
    )
    rows = map(json.loads, (output_dir / "metrics.jsonl").read_text().splitlines())
    scored = [row for row in rows if "eval_accuracy" in row][-1]
    return {"accuracy": scored["eval_accuracy"], **figures}


def main(_: list[str]) -> None:
    """Does the missing runs, and prints the table."""
    if not (data_folder() / "dev.csv").exists():
        write_data(data_folder())
    sizes = {name: FLAGS[name].value for name in (*DATA_FLAGS, "window", "steps", "precision")}
    jobs = [
        {"kind": kind, "seed": int(seed), **sizes} for seed in FLAGS.seeds for kind in FLAGS.kinds
    ]
    runs = do_runs(FLAGS.work_dir, jobs, run)
    print("\n| | accuracy x 100 | each seed | seconds of the program |")
    print("| --- | --- | --- | --- |")
    for kind in FLAGS.kinds:
        own = [run for run in runs if run["kind"] == kind]
        scores = 100 * np.array([run["accuracy"] for run in own])
        each = ", ".join(f"{score:.1f}" for score in scores)
        seconds = np.mean([run["program_seconds"] for run in own])
        print(f"| {kind} | {mean_and_spread(scores)} | {each} | {seconds:.0f} |")


if __name__ == "__main__":
    app.run(main)
