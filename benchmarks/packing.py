"""Compares the tokens per second of training on packed and on unpacked short documents.

    .venv/bin/python benchmarks/packing.py [--bert_config=base] [--rounds=20]

The corpus is the development set of UD English EWT: 318 reviews, e-mails and posts, of which three
quarters have fewer than 62 words. The data tool creates the same examples twice: one example per
row of 128 tokens, and with `--pack`. A round runs one training step (20 predictions, dropout 0.1,
AdamW) on 8 rows of each kind. Padding is not counted as tokens. Rates are averages over all rounds.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from absl import app, flags

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
CORPUS = DATA / "corpus" / "ud_ewt_dev.docs.txt"
VOCAB = DATA / "vocab" / "bert-base-uncased" / "vocab.txt"
WAYS = {"unpacked": "--nopack", "packed": "--pack"}

flags.DEFINE_string("bert_config", "base", "JSON file or name of a bundled config")
flags.DEFINE_integer("rounds", 20, "timed steps for each kind of rows", lower_bound=1)
flags.DEFINE_integer("batch_size", 8, "rows per step", lower_bound=1)
flags.DEFINE_string("dtype", "", "float32 or bfloat16; empty: the fastest of this machine")
FLAGS = flags.FLAGS


def make_records(folder: Path) -> dict[str, dict]:
    """Creates unpacked and packed records; returns {kind: the counts in its manifest}."""
    counts = {}
    for way, flag in WAYS.items():
        command = [sys.executable, "-m", "keras_bert", "create-pretraining-data", flag]
        command += [
            f"--input_file={CORPUS}",
            f"--vocab_file={VOCAB}",
            f"--output_dir={folder / way}",
        ]
        subprocess.run([*command, "--dupe_factor=10", "--num_shards=1"], cwd=ROOT, check=True)
        counts[way] = json.loads((folder / way / "manifest.json").read_text())["counts"]
    return counts


@dataclass
class Sum:
    """The tokens without padding and the seconds of the timed steps with one kind of rows."""

    tokens: float = 0.0
    wall: float = 0.0
    cpu: float = 0.0


def measure(folder: Path) -> dict[str, Sum]:
    """Trains on both kinds of records in turn; returns {kind: the sums over its timed steps}."""
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.batches import RecordSource, training_batches
    from keras_bert.pretraining.objective import pretraining_objective
    from keras_bert.pretraining.records import find_records
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay
    from keras_bert.training.step import make_train_steps
    from keras_bert.training.strategy import fastest_precision

    dtype = FLAGS.dtype or fastest_precision()
    config = BertConfig.from_json(FLAGS.bert_config)
    model = BertPretrainer(config, dtype="mixed_bfloat16" if dtype == "bfloat16" else dtype)
    optimizer = AdamWeightDecay(1e-4)
    optimizer.build(model.trainable_variables)
    task = pretraining_objective()
    state, strategy = TrainState(model, optimizer, task), tf.distribute.get_strategy()
    train_steps = make_train_steps(strategy, state, TrainingSettings(1, FLAGS.batch_size))
    batches = {
        way: iter(
            training_batches(
                RecordSource(find_records(str(folder / way)), config.vocab_size),
                FLAGS.batch_size,
                seed=1,
            )
        )
        for way in WAYS
    }
    sums = {way: Sum() for way in WAYS}
    for number in range(2 + FLAGS.rounds):
        for way, total in sums.items():
            wall, cpu = time.perf_counter(), time.process_time()
            figures = train_steps(batches[way], tf.constant(1)).numpy()
            if number >= 2:  # The first steps compile.
                total.wall += time.perf_counter() - wall
                total.cpu += time.process_time() - cpu
                total.tokens += figures.tokens[0]
    return sums


def main(_) -> None:
    """Creates the records, trains on them and prints both rates."""
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        counts = make_records(Path(folder))
        sums = measure(Path(folder))
    print("            rows  padding    s/step  tokens/s  tokens/CPU s")
    for way, total in sums.items():
        rows = counts[way]["rows"]
        padding = 1 - counts[way]["real_tokens"] / (rows * 128)
        print(
            f"{way:8} {rows:7,} {padding:8.1%} "
            f"{total.wall / FLAGS.rounds:9.3f} {total.tokens / total.wall:9.0f} "
            f"{total.tokens / total.cpu:13.0f}"
        )
    one, two = sums.values()
    wall = (two.tokens / two.wall) / (one.tokens / one.wall)
    cpu = (two.tokens / two.cpu) / (one.tokens / one.cpu)
    print(f"packed is {wall:.2f} x as fast by wall-clock time, {cpu:.2f} x by CPU time")


if __name__ == "__main__":
    app.run(main)
