"""Compares the speed of tokenizers: keras_bert, Hugging Face `tokenizers`, and Google's own.

    .venv/bin/python benchmarks/tokenizer.py [--threads=1,2] [--rounds=9]

- keras_bert: a tf.function on batches of 256 lines, called from the given number of Python threads.
- Hugging Face: `encode_batch_fast`, or `encode_batch` for offsets, on the given number of Rayon
  threads. The time to extract the ids from its results is not included; keras_bert returns tensors.
- Google (`bert-tensorflow` 1.0.4 in `.peers`): one thread.

The 300,000 English tokens take 45 ms of CPU time: the WordPiece op 25 ms, splitting at spaces 14
ms, the character table 6 ms, and the check for invalid UTF-8 and sigmas 2.5 ms. Starting a tf.data
iterator with the tokenizer takes 40 ms: use one long iterator instead of many short ones.
"""

import gc
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from absl import app, flags
from texts import DATA
from workers import ROOT, Worker, in_turn, python_of, ratio, table

flags.DEFINE_list("threads", ["1", "2"], "numbers of threads to compare with")
flags.DEFINE_integer("rounds", 9, "passes over the corpus per contender")
flags.DEFINE_string("worker", None, "internal: CONTENDER:CORPUS:THREADS of the worker")
FLAGS = flags.FLAGS

# Corpus: (vocabulary, do_lower_case, files).
CORPORA = {
    "english": ("bert-base-uncased", True, ["wikitext-2/test.txt"]),
    "ar de hi ja zh": (
        "bert-base-multilingual-cased",
        False,
        [f"{code}/xquad_paragraphs.txt" for code in ("ar", "de", "hi", "zh")]
        + ["ja/ud_gsd_dev.sents.txt", "ja/ud_gsd_test.sents.txt"],
    ),
}
CONTENDERS = ("ours", "tokenizers", "ours, offsets", "tokenizers, offsets", "google")
# The contender that each one is compared with.
BASELINES = {"tokenizers": "ours", "tokenizers, offsets": "ours, offsets", "google": "ours"}


def make_pass(contender: str, corpus: str, threads: int):
    """Returns a function that tokenizes the corpus, and one that counts the tokens it returns."""
    folder, lower, files = CORPORA[corpus]
    vocab = str(DATA / "vocab" / folder / "vocab.txt")
    text = "\n".join((DATA / "corpus" / name).read_text("utf-8") for name in files)
    lines = [line for line in text.split("\n") if line.strip()]
    if contender == "google":
        import tensorflow.compat.v1 as tf_v1

        sys.modules["tensorflow"] = tf_v1
        from bert import tokenization

        google = tokenization.FullTokenizer(vocab, lower)
        ids = lambda line: google.convert_tokens_to_ids(google.tokenize(line))  # noqa: E731
        return lambda: [ids(line) for line in lines], lambda result: sum(map(len, result))
    if contender.startswith("tokenizers"):
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        import tokenizers

        hf = tokenizers.BertWordPieceTokenizer(vocab, lowercase=lower)._tokenizer
        encode = hf.encode_batch if "offsets" in contender else hf.encode_batch_fast
        return lambda: encode(lines, add_special_tokens=False), lambda result: sum(map(len, result))

    import tensorflow as tf

    sys.path.insert(0, str(ROOT))
    from keras_bert.text.tokenizer import BertTokenizer

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    ours = BertTokenizer(vocab, lower)
    method = ours.tokenize_with_offsets if "offsets" in contender else ours.tokenize
    tokenize = tf.function(method, input_signature=[tf.TensorSpec([None], tf.string)])
    batches = [tf.constant(lines[i : i + 256]) for i in range(0, len(lines), 256)]
    pool = ThreadPoolExecutor(threads)

    def count(result: list) -> int:
        ids = (batch[0] if isinstance(batch, tuple) else batch for batch in result)
        return sum(int(ragged.row_splits[-1]) for ragged in ids)

    return lambda: list(pool.map(tokenize, batches)), count


def work(contender: str, corpus: str, threads: int) -> None:
    """Runs a pass over the corpus for each line on stdin; prints the seconds as a line of JSON."""
    run, count = make_pass(contender, corpus, threads)
    tokens = count(run())
    gc.freeze()
    print(json.dumps({"tokens": tokens}), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        result = run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        del result
        print(json.dumps({"wall": wall, "cpu": cpu}), flush=True)


def compare(corpus: str, threads: int) -> None:
    """Runs the contenders in turn, and prints the table for a corpus and a number of threads."""
    workers = {}
    for name in CONTENDERS:
        python = python_of(name if name == "google" else "ours")
        workers[name] = Worker(__file__, f"{name}:{corpus}:{threads}", python)
    times, rows = in_turn(workers, FLAGS.rounds), []
    for name, rounds in times.items():
        workers[name].close()
        tokens = workers[name].ready["tokens"]
        wall, cpu = (median(each[kind] for each in rounds) for kind in ("wall", "cpu"))
        row = [name, f"{tokens:,}", f"{wall:.3f}", f"{cpu:.3f}", f"{tokens / wall / 1e6:.2f}"]
        baseline = times[BASELINES.get(name, name)]
        rows.append([*row, *(f"{ratio(rounds, baseline, kind):.1f}" for kind in ("wall", "cpu"))])
    print(f"\n{corpus}, {threads} thread(s)\n")
    header = ["", "tokens", "wall s", "CPU s", "M tokens/s", "speedup of ours", "by CPU time"]
    table(header, rows)


def main(_) -> None:
    """Compares the contenders on each corpus with each number of threads."""
    if FLAGS.worker:
        contender, corpus, threads = FLAGS.worker.split(":")
        return work(contender, corpus, int(threads))
    for corpus in CORPORA:
        for threads in FLAGS.threads:
            compare(corpus, int(threads))
    return None


if __name__ == "__main__":
    app.run(main)
