"""Measures how fast keras_bert and Google's script convert raw text to pre-training records.

    .venv/bin/python benchmarks/pretraining_data.py [--rounds=3] [--copies=30]
    .venv/bin/python benchmarks/pretraining_data.py --large   # 1 GiB of text: memory and rate
    .venv/bin/python benchmarks/pretraining_data.py --scaling   # what limits two workers

The corpus is the King James Bible and WikiText-2 (valid and test), one sentence per line. The
records have length 128, 20 predictions and a dupe factor of 5. Google's script (`bert-tensorflow`
1.0.4 in `.peers`) runs in one warm process with one thread. keras_bert gets enough copies to run
for half a minute; each copy has its sentences in another order, so that all documents are distinct.

Google's time excludes start-up, but keras_bert starts worker processes for each dataset. Therefore,
each of its turns creates a dataset from one copy and a dataset from all copies. The rate is the
difference in records divided by the difference in seconds. At this rate, one copy would take less
time than measured; the rest is start-up.

--scaling compares one worker with two, and with two datasets that are created at the same time with
one worker each. These share nothing but the machine, so the sum of their rates is its limit.
"""

import json
import random
import resource
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from absl import app, flags
from workers import ROOT, answer, start_worker

DATA = ROOT.parent / "shared" / "data"
VOCAB = DATA / "vocab" / "bert-base-uncased" / "vocab.txt"
LENGTH, PREDICTIONS, DUPE_FACTOR = 128, 20, 5
_FEW = 10  # The copies in the smaller dataset of --scaling.

flags.DEFINE_integer("rounds", 3, "rounds per contender")
flags.DEFINE_integer("copies", 30, "number of copies of the corpus in the input of ours")
flags.DEFINE_bool("large", False, "compare 1/8 GiB with 1 GiB of text, instead of the contenders")
flags.DEFINE_bool("scaling", False, "compare one worker with two, and with two datasets at once")
flags.DEFINE_string("worker", None, "internal: contender of the worker")
FLAGS = flags.FLAGS


def read_corpus() -> list[list[str]]:
    """Returns the documents of the corpus; each is a list of sentences."""
    from data_tools.sentences import split_sentences

    documents = []
    for book in sorted((DATA / "corpus" / "kjv").glob("*.txt")):
        documents += [chapter.split("\n") for chapter in book.read_text("utf-8").split("\n\n")]
    for name in ("valid", "test"):
        for line in (DATA / "corpus" / "wikitext-2" / f"{name}.txt").read_text("utf-8").split("\n"):
            line = line.strip()
            if line.startswith("= ") and not line.startswith("= ="):
                documents.append([])
            elif line and not line.startswith("= ="):
                documents[-1] += split_sentences(line)
    return [[s for s in document if s.strip()] for document in documents]


def write_corpus(path: Path, documents: list[list[str]], copies: int = 0, size: int = 0) -> None:
    """Writes copies of documents, with shuffled sentences from the second copy on.

    If `copies` is 0, it writes copies until the file has at least `size` bytes.
    """
    with open(path, "w", encoding="utf-8") as file:
        copy = 0
        while (copy < copies) if copies else (file.tell() < size):
            rng = random.Random(copy)
            for document in documents:
                sentences = rng.sample(document, len(document)) if copy else document
                file.write("\n".join(sentences) + "\n\n")
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
    from data_tools.create_pretraining_data import create_pretraining_data
    from data_tools.settings import Settings

    settings = Settings(
        max_seq_length=LENGTH, max_predictions_per_seq=PREDICTIONS, dupe_factor=DUPE_FACTOR
    )
    manifest = create_pretraining_data(corpus, output, str(VOCAB), settings, num_workers)
    return manifest["counts"]["examples"]


def work(contender: str) -> None:
    """Creates a dataset for each corpus path on stdin; prints what `Contender.make` returns."""
    import logging

    logging.disable(logging.INFO)
    if contender == "google":
        sys.argv = sys.argv[:1]
        make = google
    else:
        sys.path.insert(0, str(ROOT))

        def make(corpus: str, output: str) -> int:
            return ours(corpus, output, int(contender))

    print("{}", flush=True)
    for line in sys.stdin:
        folder = tempfile.mkdtemp()
        wall, cpu = time.perf_counter(), _cpu()
        examples = make(line.strip(), f"{folder}/out")
        wall, cpu = time.perf_counter() - wall, _cpu() - cpu
        shutil.rmtree(folder)
        peak = {
            who: resource.getrusage(kind).ru_maxrss / 1024
            for who, kind in (
                ("parent", resource.RUSAGE_SELF),
                ("worker", resource.RUSAGE_CHILDREN),
            )
        }
        figures = {"examples": examples, "wall": wall, "cpu": cpu, "peak": peak}
        print(json.dumps(figures), flush=True)


def _cpu() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Contender:
    """Creates datasets in a warm process.

    `name` is `google`, or the number of workers of keras_bert.
    """

    def __init__(self, name: str):
        self._worker = start_worker(".peers" if name == "google" else ".venv", __file__, name)
        answer(self._worker)

    def make(self, corpus: Path) -> dict:
        """Creates a dataset; returns its number of examples, wall and CPU seconds, and peak MiB.

        The peak is that of the parent process and of the largest worker process.
        """
        self._worker.stdin.write(f"{corpus}\n")
        self._worker.stdin.flush()
        return answer(self._worker)

    def rate(self, one: Path, all_copies: Path) -> dict:
        """Returns records per wall and CPU second without start-up, and the seconds of start-up.

        `one` and `all_copies` are the files with one copy and with all copies of the corpus.
        """
        small, large = self.make(one), self.make(all_copies)
        examples = large["examples"] - small["examples"]
        rate = examples / (large["wall"] - small["wall"])
        return {
            "examples": large["examples"],
            "wall": large["wall"],
            "rate": rate,
            "cpu_rate": examples / (large["cpu"] - small["cpu"]),
            "startup": small["wall"] - small["examples"] / rate,
            "peak": large["peak"],
        }


def compare(folder: Path, documents: list[list[str]]) -> None:
    """Prints the rates of Google's script and of keras_bert with one and with two workers."""
    one, many = folder / "one.txt", folder / "many.txt"
    write_corpus(one, documents, 1)
    write_corpus(many, documents, FLAGS.copies)
    peer, ours = Contender("google"), {name: Contender(name) for name in ("1", "2")}
    peer.make(one)  # Warm-up.
    ratios: dict[str, list[float]] = {name: [] for name in ours}
    for _ in range(FLAGS.rounds):
        theirs = peer.make(one)
        base = theirs["examples"] / theirs["wall"]
        print(
            f"google     {theirs['examples']:9,} records {theirs['wall']:6.1f} s  {base:9,.0f}/s, "
            f"{theirs['examples'] / theirs['cpu']:9,.0f}/CPU s, peak {theirs['peak']['parent']:.0f}"
            " MiB",
            flush=True,
        )
        for name, contender in ours.items():
            found = contender.rate(one, many)
            ratios[name].append(found["rate"] / base)
            print(
                f"{name} worker(s) {found['examples']:7,} records {found['wall']:6.1f} s "
                f"{found['rate']:9,.0f}/s, {found['cpu_rate']:9,.0f}/CPU s, start-up "
                f"{found['startup']:.1f} s, {found['rate'] / base:.1f} x",
                flush=True,
            )
    for name, found in ratios.items():
        print(f"{name} worker(s): median {median(found):.1f} x Google's records a second")


def large(folder: Path, documents: list[list[str]]) -> None:
    """Prints rate and peak memory for 1/8 GiB and for 1 GiB of text."""
    contender = {size: Contender("2") for size in (1 / 8, 1)}  # separate processes, separate peaks
    for size, worker in contender.items():
        corpus = folder / "corpus.txt"
        one = folder / "one.txt"
        write_corpus(one, documents, 1)
        write_corpus(corpus, documents, size=int(size * 2**30))
        found = worker.rate(one, corpus)
        print(
            f"{size:.3f} GiB: {found['examples']:,} records in {found['wall']:.1f} s, "
            f"{found['rate']:,.0f}/s, {found['cpu_rate']:,.0f}/CPU s; peak MiB: parent "
            f"{found['peak']['parent']:.0f}, worker {found['peak']['worker']:.0f}",
            flush=True,
        )


def scaling(folder: Path, documents: list[list[str]]) -> None:
    """Prints the rates of one worker, of two workers, and of two datasets created at once."""
    if FLAGS.copies <= _FEW:
        sys.exit(f"--copies={FLAGS.copies}: expected more than {_FEW} with --scaling")
    few, many = folder / "few.txt", folder / "many.txt"
    # One copy would be a single shard, which a single worker creates.
    write_corpus(few, documents, _FEW)
    write_corpus(many, documents, FLAGS.copies)
    ours, other = {name: Contender(name) for name in ("1", "2")}, Contender("1")
    for contender in (*ours.values(), other):
        contender.make(few)  # Warm-up.
    ratios: dict[str, list[float]] = {"2": [], "1 + 1": []}
    for _ in range(FLAGS.rounds):
        found = {name: contender.rate(few, many) for name, contender in ours.items()}
        with ThreadPoolExecutor() as threads:
            both = list(threads.map(lambda each: each.rate(few, many), (ours["1"], other)))
        found["1 + 1"] = {
            "rate": sum(each["rate"] for each in both),
            "cpu_rate": sum(each["cpu_rate"] for each in both) / 2,
        }
        for name, each in found.items():
            start_up = f", start-up {each['startup']:.1f} s" if "startup" in each else ""
            rates = f"{each['rate']:9,.0f}/s, {each['cpu_rate']:9,.0f}/CPU s"
            print(f"workers: {name:5} {rates}{start_up}", flush=True)
        for name, values in ratios.items():
            values.append(found[name]["rate"] / found["1"]["rate"])
    for name, values in ratios.items():
        print(f"workers: {name}: median {median(values):.2f} x one worker")


def main(_) -> None:
    """Runs the comparison that the flags select."""
    if FLAGS.worker:
        return work(FLAGS.worker)
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder), read_corpus()
        if FLAGS.large:
            large(*inputs)
        elif FLAGS.scaling:
            scaling(*inputs)
        else:
            compare(*inputs)
    return None


if __name__ == "__main__":
    app.run(main)
