"""Measures how fast keras_bert and Google's script convert raw text to pre-training records.

    .venv/bin/python benchmarks/pretraining_data.py [--rounds=3] [--copies=30]
    .venv/bin/python benchmarks/pretraining_data.py --large   # 1 GiB of text: memory and rate

The corpus is the King James Bible and the valid and test set of WikiText-2. The records have length
128, 20 predictions and a dupe factor of 5. Google's script (`bert-tensorflow` 1.0.4 in `.peers`)
runs in one warm process with one thread. keras_bert gets enough copies to run for half a minute;
each copy has its lines in another order, so that all documents are distinct.

Google's time excludes start-up, but keras_bert starts worker processes for each dataset. Therefore,
each of its turns creates a dataset from 10 copies, which are enough for two workers, and one from
all copies. The rate is the difference in records divided by the difference in seconds. At this
rate, the smaller dataset would take less time than measured; the rest is start-up.
"""

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from absl import app, flags
from texts import DATA
from workers import ROOT, Worker, python_of, table

VOCAB = DATA / "vocab" / "bert-base-uncased" / "vocab.txt"
LENGTH, PREDICTIONS, DUPE_FACTOR = 128, 20, 5
FEW_COPIES = 10  # A file of more than 32 MiB is read by two workers.

flags.DEFINE_integer("rounds", 3, "rounds per contender", lower_bound=1)
flags.DEFINE_integer("copies", 30, "number of copies of the corpus for ours", lower_bound=20)
flags.DEFINE_bool("large", False, "compare 1/8 GiB with 1 GiB of text, instead of the contenders")
flags.DEFINE_string("worker", None, "internal: contender of the worker")
FLAGS = flags.FLAGS


def read_corpus() -> list[list[str]]:
    """Returns the documents of the corpus; each is a list of lines."""
    documents = []
    for book in sorted((DATA / "corpus" / "kjv").glob("*.txt")):
        documents += [chapter.split("\n") for chapter in book.read_text("utf-8").split("\n\n")]
    for name in ("valid", "test"):
        for line in (DATA / "corpus" / "wikitext-2" / f"{name}.txt").read_text("utf-8").split("\n"):
            if line.startswith(" = ") and not line.startswith(" = ="):
                documents.append([])
            elif line.strip() and not line.startswith(" = ="):
                documents[-1] += line.strip().replace(" . ", " .\n").split("\n")
    return [[line for line in document if line.strip()] for document in documents]


def write_corpus(path: Path, copies: int = 0, size: int = 0) -> None:
    """Writes copies of the corpus, with shuffled lines from the second copy on.

    If `copies` is 0, it writes copies until the file has at least `size` bytes.
    """
    documents, copy = read_corpus(), 0
    with open(path, "w", encoding="utf-8") as file:
        while (copy < copies) if copies else (file.tell() < size):
            rng = random.Random(copy)
            for document in documents:
                lines = rng.sample(document, len(document)) if copy else document
                file.write("\n".join(lines) + "\n\n")
            copy += 1


def google(corpus: str, output: str) -> int:
    """Creates a dataset with the functions of Google's script; returns the number of records."""
    import tensorflow.compat.v1 as tf_v1

    sys.modules["tensorflow"] = tf_v1
    from bert import create_pretraining_data as theirs
    from bert import tokenization

    tokenizer = tokenization.FullTokenizer(str(VOCAB), do_lower_case=True)
    instances = theirs.create_training_instances(
        [corpus], tokenizer, LENGTH, DUPE_FACTOR, 0.1, 0.15, PREDICTIONS, random.Random(12345)
    )
    theirs.write_instance_to_example_files(instances, tokenizer, LENGTH, PREDICTIONS, [output])
    return len(instances)


def ours(corpus: str, output: str, num_workers: int) -> int:
    """Creates a dataset with keras_bert; returns the number of records."""
    sys.path.insert(0, str(ROOT))
    from data_tools.create_pretraining_data import create_pretraining_data
    from data_tools.settings import Settings

    settings = Settings(
        max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, dupe_factor=DUPE_FACTOR
    )
    manifest = create_pretraining_data(corpus, output, str(VOCAB), settings, num_workers)
    return manifest["counts"]["examples"]


def work(contender: str) -> None:
    """Creates a dataset for each corpus path on stdin; prints its figures as a line of JSON.

    The peak memory in MiB is that of this process, and that of the largest worker process.
    """
    import logging

    logging.disable(logging.INFO)
    sys.argv = sys.argv[:1]  # Google's script has flags too.
    print("{}", flush=True)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            wall, cpu = time.perf_counter(), cpu_seconds()
            if contender == "google":
                examples = google(line.strip(), f"{folder}/out")
            else:
                examples = ours(line.strip(), f"{folder}/out", int(contender.split("_")[1]))
            wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        peaks = [
            resource.getrusage(who).ru_maxrss / 1024
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        figures = {"examples": examples, "wall": wall, "cpu": cpu, "peaks": peaks}
        print(json.dumps(figures), flush=True)


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of its ended child processes."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(worker: Worker, few: Path, many: Path) -> dict:
    """Returns the figures of keras_bert's dataset of many copies, with its rates and start-up."""
    small, large = worker.ask(few), worker.ask(many)
    examples = large["examples"] - small["examples"]
    rate = examples / (large["wall"] - small["wall"])
    cpu_rate = examples / (large["cpu"] - small["cpu"])
    start_up = small["wall"] - small["examples"] / rate
    return {**large, "rate": rate, "cpu_rate": cpu_rate, "start_up": start_up}


def compare(folder: Path) -> None:
    """Prints the rates of Google's script and of keras_bert with one and with two workers."""
    one, few, many = folder / "one.txt", folder / "few.txt", folder / "many.txt"
    write_corpus(one, copies=1)
    write_corpus(few, FEW_COPIES)
    write_corpus(many, copies=FLAGS.copies)
    names = ("google", "ours_1", "ours_2")
    workers = {name: Worker(__file__, name, python_of(name)) for name in names}
    workers["google"].ask(one)  # Warm-up.
    rounds = []
    for _ in range(FLAGS.rounds):
        theirs = workers["google"].ask(one)
        theirs |= {
            "rate": theirs["examples"] / theirs["wall"],
            "cpu_rate": theirs["examples"] / theirs["cpu"],
            "start_up": 0.0,
        }
        rounds.append(
            {"google": theirs} | {name: measure(workers[name], few, many) for name in names[1:]}
        )
    rows = []
    for name in names:
        cells = [
            f"{median(figures[name][key] for figures in rounds):,.{digits}f}"
            for key, digits in (("examples", 0), ("rate", 0), ("cpu_rate", 0), ("start_up", 1))
        ]
        ratios = (figures[name]["rate"] / figures["google"]["rate"] for figures in rounds)
        rows.append([name, *cells, f"{median(ratios):.1f}"])
    table(["", "records", "records/s", "records/CPU s", "start-up s", "x Google"], rows)


def large(folder: Path) -> None:
    """Prints rate and peak memory for 1/8 GiB and for 1 GiB of text."""
    few, corpus, rows = folder / "few.txt", folder / "corpus.txt", []
    write_corpus(few, FEW_COPIES)
    for size in (1 / 8, 1):
        write_corpus(corpus, size=int(size * 2**30))
        worker = Worker(__file__, "ours_2")  # A process has one peak.
        figures = measure(worker, few, corpus)
        worker.close()
        rates = [f"{figures[key]:,.0f}" for key in ("examples", "wall", "rate", "cpu_rate")]
        rows.append([f"{size} GiB", *rates, *(f"{peak:.0f} MiB" for peak in figures["peaks"])])
    header = ["text", "records", "seconds", "records/s", "records/CPU s"]
    table([*header, "main process", "worker"], rows)


def main(_) -> None:
    """Runs the comparison that the flags select."""
    if FLAGS.worker:
        return work(FLAGS.worker)
    with tempfile.TemporaryDirectory() as folder:
        (large if FLAGS.large else compare)(Path(folder))
    return None


if __name__ == "__main__":
    app.run(main)
