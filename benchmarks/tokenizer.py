"""Compares the speed of tokenizers: ours, nanotoken, Hugging Face `tokenizers`, and Google's own.

    .venv/bin/python benchmarks/tokenizer.py [--corpora=books] [--threads=1,2] [--rounds=9]

- ours: `BertTokenizer.tokenize` with a warm cache of words; `cold` with an empty one each time;
  `graph` a tf.function, as in a SavedModel, on batches of 256 lines, called from Python threads.
- nanotoken: `encode_batch`, which has a cache of words too, as long as the process.
- Hugging Face: `encode_batch_fast`, or `encode_batch` for offsets, on Rayon threads. The time to
  extract the ids from its results is not included; keras_bert returns tensors.
- Google (`bert-tensorflow` 1.0.4 in `.peers`): one thread.

nanotoken and `tokenizers` give other ids than Google's for some characters.
"""

import gc
import json
import lzma
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from absl import app, flags
from texts import DATA
from workers import ROOT, Worker, in_turn, python_of, ratio, table

flags.DEFINE_list("corpora", None, "corpora to compare on; by default, all but books")
flags.DEFINE_list("threads", ["1", "2"], "numbers of threads to compare with")
flags.DEFINE_integer("rounds", 9, "passes over the corpus per contender")
flags.DEFINE_string("worker", None, "internal: CONTENDER:CORPUS:THREADS of the worker")
FLAGS = flags.FLAGS

UNCASED, MULTILINGUAL = ("bert-base-uncased", True), ("bert-base-multilingual-cased", False)
# Corpus: (vocabulary, do_lower_case), and its files, or those of `gutenberg-85`, 60 MB.
CORPORA = {
    "english": (UNCASED, ["wikitext-2/test.txt"]),
    "ar de hi ja zh": (
        MULTILINGUAL,
        [f"{code}/xquad_paragraphs.txt" for code in ("ar", "de", "hi", "zh")]
        + ["ja/ud_gsd_dev.sents.txt", "ja/ud_gsd_test.sents.txt"],
    ),
    "books": (UNCASED, ["gutenberg-85"]),
}
CONTENDERS = (
    *("ours", "ours, cold", "ours, graph", "nanotoken", "nanotoken, cold", "tokenizers"),
    *("ours, offsets", "ours, offsets, graph", "tokenizers, offsets", "google"),
)
FAST = CONTENDERS[:6]  # The contenders on books.


def read_lines(files: list[str]) -> list[str]:
    """Returns the lines of a corpus that are not empty."""
    paths = [path for name in files for path in sorted((DATA / "corpus" / name).rglob("*.xz"))]
    texts = [lzma.decompress(path.read_bytes()).decode() for path in paths]
    texts = texts or [(DATA / "corpus" / name).read_text("utf-8") for name in files]
    return [line for text in texts for line in text.split("\n") if line.strip()]


def make_pass(contender: str, corpus: str, threads: int):
    """Returns functions that create a tokenizer, run it on the corpus, and count its tokens."""
    (folder, lower), files = CORPORA[corpus]
    vocab = str(DATA / "vocab" / folder / "vocab.txt")
    lines = read_lines(files)
    if contender == "google":
        import tensorflow.compat.v1 as tf_v1

        sys.modules["tensorflow"] = tf_v1
        from bert import tokenization

        create = lambda: tokenization.FullTokenizer(vocab, lower)  # noqa: E731
        ids = lambda google, line: google.convert_tokens_to_ids(google.tokenize(line))  # noqa: E731
        return create, lambda google: [ids(google, line) for line in lines], count_lists
    if "tokenizers" in contender:
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        import tokenizers

        create = lambda: tokenizers.BertWordPieceTokenizer(vocab, lowercase=lower)._tokenizer  # noqa: E731
        encode = "encode_batch" if "offsets" in contender else "encode_batch_fast"
        return (
            create,
            lambda each: getattr(each, encode)(lines, add_special_tokens=False),
            count_lists,
        )
    if "nanotoken" in contender:
        import nanotoken

        create = lambda: nanotoken.Tokenizer.from_vocab(vocab, lowercase=lower)  # noqa: E731
        run = lambda each: each.encode_batch(lines, parallel=threads > 1)  # noqa: E731
        return create, run, lambda rows: int(rows.lengths.sum()) - 2 * len(lines)

    import tensorflow as tf

    sys.path.insert(0, str(ROOT))
    from keras_bert.text.tokenizer import BertTokenizer

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    method = "tokenize_with_offsets" if "offsets" in contender else "tokenize"
    pool = ThreadPoolExecutor(threads)

    def create():
        tokenize = getattr(BertTokenizer(vocab, lower), method)
        if "graph" in contender:
            tokenize = tf.function(tokenize, input_signature=[tf.TensorSpec([None], tf.string)])
        tokenize(tf.constant([""]))  # Starts TensorFlow and traces.
        return tokenize

    size = 256 if "graph" in contender else 1 << 16
    batches = [lines[start : start + size] for start in range(0, len(lines), size)]
    if "graph" in contender:
        batches = [*map(tf.constant, batches)]
    return create, lambda tokenize: [*pool.map(tokenize, batches)], count_ragged


def count_lists(rows: list) -> int:
    """Counts the tokens in lists."""
    return sum(map(len, rows))


def count_ragged(batches: list) -> int:
    """Counts the tokens in ragged tensors of ids, or in tuples that start with them."""
    ids = (batch[0] if isinstance(batch, tuple) else batch for batch in batches)
    return sum(int(ragged.row_splits[-1]) for ragged in ids)


def work(contender: str, corpus: str, threads: int) -> None:
    """Runs a pass over the corpus for each line on stdin; prints the seconds as a line of JSON."""
    create, run, count = make_pass(contender, corpus, threads)
    tokenizer = create()
    tokens = count(run(tokenizer))
    gc.freeze()
    print(json.dumps({"tokens": tokens}), flush=True)
    for _ in sys.stdin:
        if "cold" in contender:
            tokenizer = create()
        wall, cpu = time.perf_counter(), time.process_time()
        result = run(tokenizer)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        del result
        print(json.dumps({"wall": wall, "cpu": cpu}), flush=True)


def compare(corpus: str, threads: int) -> None:
    """Runs the contenders in turn, and prints the table for a corpus and a number of threads."""
    workers = {}
    for name in FAST if corpus == "books" else CONTENDERS:
        workers[name] = Worker(__file__, f"{name}:{corpus}:{threads}", python_of(name))
    times, rows = in_turn(workers, FLAGS.rounds), []
    for name, rounds in times.items():
        workers[name].close()
        tokens = workers[name].ready["tokens"]
        wall, cpu = (median(each[kind] for each in rounds) for kind in ("wall", "cpu"))
        row = [name, f"{tokens:,}", f"{wall:.3f}", f"{cpu:.3f}", f"{tokens / wall / 1e6:.2f}"]
        baseline = times["ours, offsets" if "offsets" in name else "ours"]
        rows.append([*row, *(f"{ratio(rounds, baseline, kind):.1f}" for kind in ("wall", "cpu"))])
    print(f"\n{corpus}, {threads} thread(s)\n")
    header = ["", "tokens", "wall s", "CPU s", "M tokens/s", "speedup of ours", "by CPU time"]
    table(header, rows)


def main(_) -> None:
    """Compares the contenders on each corpus with each number of threads."""
    if FLAGS.worker:
        contender, corpus, threads = FLAGS.worker.split(":")
        return work(contender, corpus, int(threads))
    for corpus in FLAGS.corpora or [*CORPORA][:2]:
        for threads in FLAGS.threads:
            compare(corpus, int(threads))
    return None


if __name__ == "__main__":
    app.run(main)
