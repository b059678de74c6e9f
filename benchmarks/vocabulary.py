"""Measures the time and memory to learn a vocabulary of 30,000 tokens from 100 MB of text.

    .venv/bin/python benchmarks/vocabulary.py [--megabytes=100] [--rounds=3]

The text consists of distinct lines from the corpus in ../shared/data, and then from the
documentation and sources of the installed packages. keras_bert's contender is the whole program;
the other is the BertWordPieceTokenizer of `tokenizers`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from absl import app, flags

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT.parent / "shared" / "data" / "corpus", ROOT / ".venv" / "lib", ROOT / ".peers")
ENDINGS = (".txt", ".md", ".rst", ".py")
CONTENDERS = ("ours", "tokenizers")
VOCAB_SIZE = 30000

flags.DEFINE_integer("megabytes", 100, "size of the text to learn from")
flags.DEFINE_integer("rounds", 3, "vocabularies that each contender learns")
flags.DEFINE_string("worker", None, "internal: CONTENDER:FILE of the worker")
FLAGS = flags.FLAGS


def find_texts() -> Iterator[str]:
    """Yields the texts of local files, always in the same order."""
    for source in SOURCES:
        for folder, folders, names in os.walk(source):
            folders.sort()
            for name in sorted(names):
                if name.endswith(ENDINGS):
                    try:
                        yield Path(folder, name).read_text("utf-8")
                    except (UnicodeDecodeError, OSError):
                        continue


def make_corpus(path: Path, size: int) -> int:
    """Writes distinct lines of the texts until they have `size` bytes; returns their size.

    A blank line follows the lines of each text.
    """
    seen, written = set(), 0
    with open(path, "w", encoding="utf-8") as file:
        for text in find_texts():
            lines = [line.strip() for line in text.split("\n")]
            new = [line for line in dict.fromkeys(lines) if line and hash(line) not in seen]
            seen.update(map(hash, new))
            written += len("\n".join([*new, "", ""]).encode())
            file.write("\n".join([*new, "", ""]))
            if written >= size:
                break
    return written


def ours(corpus: str, vocab_file: str) -> dict[str, float]:
    """Learns the vocabulary with the parts of `data_tools.build_vocab`.

    Returns the seconds of each part, and the numbers of words, distinct words and tokens.
    """
    seconds, started = {}, time.perf_counter()

    def lap(part: str) -> None:
        nonlocal started
        seconds[part], started = time.perf_counter() - started, time.perf_counter()

    sys.path.insert(0, str(ROOT))
    from keras_bert.startup import start_tensorflow

    start_tensorflow()
    import keras_bert.text.tokenizer  # noqa: F401
    from data_tools.corpus import Reading
    from data_tools.lines import OddInput
    from data_tools.vocabulary import count_words, learn_vocab
    from keras_bert.text.settings import TokenizerSettings

    lap("start")
    words = count_words([corpus], Reading(), TokenizerSettings(), OddInput())
    lap("count")
    vocab = learn_vocab(words, VOCAB_SIZE)
    lap("learn")
    Path(vocab_file).write_text("".join(token + "\n" for token in vocab))
    return seconds | {"words": words.total(), "distinct": len(words), "tokens": len(vocab)}


def tokenizers(corpus: str, vocab_file: str) -> dict[str, float]:
    """Learns the vocabulary with Hugging Face's trainer; returns the number of tokens."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(lowercase=True)
    tokenizer.train(corpus, vocab_size=VOCAB_SIZE, min_frequency=2, show_progress=False)
    Path(vocab_file).write_text("".join(token + "\n" for token in tokenizer.get_vocab()))
    return {"tokens": tokenizer.get_vocab_size()}


def work(contender: str, corpus: str) -> None:
    """Runs one contender; prints its result and its peak memory as a line of JSON."""
    figures = {"ours": ours, "tokenizers": tokenizers}[contender](corpus, f"{corpus}.{contender}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures | {"peak MiB": peak}))


def main(_) -> None:
    """Runs the contenders in turn and prints their figures."""
    if FLAGS.worker:
        return work(*FLAGS.worker.split(":", 1))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        size = make_corpus(corpus, FLAGS.megabytes * 1_000_000)
        print(f"{size / 1e6:.1f} MB of text", flush=True)
        results = {contender: [] for contender in CONTENDERS}
        for _ in range(FLAGS.rounds):
            for contender in CONTENDERS:
                started = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, __file__, f"--worker={contender}:{corpus}"],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                figures = json.loads(done.stdout.splitlines()[-1])
                results[contender].append({"seconds": time.perf_counter() - started} | figures)
        for contender, rounds in results.items():
            figures = {name: median(each[name] for each in rounds) for name in rounds[0]}
            words = [f"{name} {value:,.1f}".removesuffix(".0") for name, value in figures.items()]
            print(f"{contender:11} {', '.join(words)}")
    return None


if __name__ == "__main__":
    app.run(main)
