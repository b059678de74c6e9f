"""Measures the memory in which Parquet and Arrow corpora of 128 MiB and 1 GiB become records.

    .venv/bin/python benchmarks/corpus_memory.py [--sizes=128,1024] [--num_workers=2]

Each corpus is a temporary file, which is deleted after the measurement. A row is a document of
random sentences, and has a second column that is not read. A Parquet file has row groups of 64 MiB
of text, and an Arrow file has record batches of 1 MiB. A new process runs the complete program
create_pretraining_data on each file, with --dupe_factor=1.

- main process: the peak of its resident memory. It reads the file, and distributes the documents.
- worker: the peak of the largest worker process, which holds one shard and TensorFlow.

The output is a Markdown table.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from absl import app, flags
from pyarrow import parquet

ROOT = Path(__file__).resolve().parents[1]
BATCH_BYTES = 1 << 20
BATCHES_PER_ROW_GROUP = 64
NUM_WORDS = 2000
NUM_SENTENCES = 50_000

flags.DEFINE_list("sizes", ["128", "1024"], "sizes of the text in MiB")
flags.DEFINE_string("folder", None, "folder of the temporary files; default: the system's")
flags.DEFINE_integer("num_workers", 2, "worker processes per build", lower_bound=2)
flags.DEFINE_string("worker", None, "internal: FORMAT:FILE of the worker")
FLAGS = flags.FLAGS


def words() -> list[str]:
    """Returns distinct words of 2 to 9 letters."""
    random = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucm"))
    found: dict[str, None] = {}
    while len(found) < NUM_WORDS:
        found["".join(random.choice(letters, random.integers(2, 10)))] = None
    return list(found)


def sentences(count: int) -> list[str]:
    """Returns random sentences of 5 to 24 words."""
    random, vocab = np.random.default_rng(0), words()
    return [
        " ".join(vocab[index] for index in random.integers(0, len(vocab), length)) + "."
        for length in random.integers(5, 25, count)
    ]


def batches(num_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yields record batches with about BATCH_BYTES of text, until there are `num_bytes` of it."""
    random, pool = np.random.default_rng(1), sentences(NUM_SENTENCES)
    for _ in range(num_bytes // BATCH_BYTES):
        texts, size = [], 0
        while size < BATCH_BYTES:
            drawn = random.integers(0, NUM_SENTENCES, random.integers(5, 40))
            texts.append(" ".join(pool[index] for index in drawn))
            size += len(texts[-1])
        numbers = random.integers(0, 1 << 62, len(texts))
        yield pa.record_batch({"number": numbers, "text": texts})


def write_parquet(path: Path, source: Iterator[pa.RecordBatch]) -> None:
    """Writes record batches as a Parquet file, in row groups of BATCHES_PER_ROW_GROUP of them."""
    group = [next(source)]
    with parquet.ParquetWriter(path, group[0].schema) as writer:
        for batch in source:
            group.append(batch)
            if len(group) == BATCHES_PER_ROW_GROUP:
                writer.write_table(pa.Table.from_batches(group), row_group_size=1 << 30)
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group), row_group_size=1 << 30)


def write_arrow(path: Path, source: Iterator[pa.RecordBatch]) -> None:
    """Writes record batches as an Arrow stream, the format of Hugging Face datasets."""
    first = next(source)
    with pa.ipc.new_stream(str(path), first.schema) as writer:
        writer.write_batch(first)
        for batch in source:
            writer.write_batch(batch)


WRITERS: dict[str, Callable[[Path, Iterator[pa.RecordBatch]], None]] = {
    "parquet": write_parquet,
    "arrow": write_arrow,
}


def peak() -> float:
    """Returns the peak of this process's resident memory in MiB.

    The peak of `getrusage` may be that of the process that started this one.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def work(input_format: str, path: str) -> None:
    """Creates the records of a file; prints the peaks, the seconds and the counts as JSON."""
    import logging

    logging.disable(logging.INFO)
    sys.path.insert(0, str(ROOT))
    from data_tools.create_pretraining_data import create_pretraining_data
    from data_tools.settings import Settings
    from keras_bert.text.vocabulary import SPECIAL_TOKENS

    place = Path(path).parent
    alphabet = sorted({letter for word in words() for letter in word})
    tokens = [*SPECIAL_TOKENS, ".", *alphabet, *(f"##{letter}" for letter in alphabet)]
    (place / "vocab.txt").write_text("".join(f"{token}\n" for token in [*tokens, *words()]))
    settings = Settings(
        input_format=input_format, max_seq_length=128, max_predictions_per_seq=20, dupe_factor=1
    )
    started = time.perf_counter()
    manifest = create_pretraining_data(
        path, str(place / "records"), str(place / "vocab.txt"), settings, FLAGS.num_workers
    )
    figures = {"seconds": time.perf_counter() - started, "main": peak(), **manifest["counts"]}
    figures["worker"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps(figures))


def measure(input_format: str, mebibytes: int) -> str:
    """Writes a corpus, runs the build in a new process, and returns the row of the table."""
    with tempfile.TemporaryDirectory(prefix="corpus-memory-", dir=FLAGS.folder) as folder:
        path = Path(folder) / f"corpus.{input_format}"
        WRITERS[input_format](path, batches(mebibytes << 20))
        done = subprocess.run(
            [
                *(sys.executable, __file__, f"--worker={input_format}:{path}"),
                f"--num_workers={FLAGS.num_workers}",
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        figures = json.loads(done.stdout.splitlines()[-1])
        return (
            f"| {input_format} | {mebibytes:,} MiB | {path.stat().st_size >> 20:,} MiB | "
            f"{figures['documents']:,} | {figures['examples']:,} | {figures['seconds']:.0f} s | "
            f"{figures['main']:.0f} MiB | {figures['worker']:.0f} MiB |"
        )


def main(_) -> None:
    """Measures each format and size in turn, and prints the table."""
    if FLAGS.worker:
        return work(*FLAGS.worker.split(":", 1))
    print("| format | text | file | documents | records | time | main process | worker |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for input_format in WRITERS:
        for size in map(int, FLAGS.sizes):
            print(measure(input_format, size), flush=True)
    return None


if __name__ == "__main__":
    app.run(main)
