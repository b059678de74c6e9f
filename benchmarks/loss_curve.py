"""Compares the loss on real text in bfloat16 and in float32.

    .venv/bin/python benchmarks/loss_curve.py [--steps=400] [--work_dir=/tmp/loss_curve]

The mini BERT trains on the King James Bible (../shared/data; 8,000 tokens in the vocabulary, 16
examples of 128 tokens per step, 20 predictions, dropout 0.1) in float32, in float32 with another
seed (other weights, order and masks), and in bfloat16 with the first seed. The two runs with the
same seed see the same examples and dropout masks, so they differ only by rounding.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from absl import app, flags

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT.parent / "shared" / "data" / "corpus" / "kjv"
STRETCH = 50  # steps per printed mean

flags.DEFINE_integer("steps", 400, "steps per run", lower_bound=STRETCH)
flags.DEFINE_string("work_dir", "/tmp/loss_curve", "folder for the vocabulary and the records")
FLAGS = flags.FLAGS

# Name: (dtype policy, seed).
RUNS = {
    "float32": ("float32", 1),
    "float32, another seed": ("float32", 2),
    "bfloat16": ("mixed_bfloat16", 1),
}


def make_records(folder: Path) -> Path:
    """Learns a vocabulary and writes records with the data tools, unless the records exist."""
    records, vocab = folder / "records", folder / "vocab.txt"
    if not (records / "manifest.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        text = [f"--input_file={CORPUS}/*.txt", f"--vocab_file={vocab}"]
        for command in (
            ["build-vocab", "--vocab_size=8000", *text],
            ["create-pretraining-data", f"--output_dir={records}", "--dupe_factor=2", *text],
        ):
            subprocess.run(
                [sys.executable, "-m", "keras_bert", *command],
                cwd=ROOT,
                check=True,
            )
    return records


def train(records: Path, dtype: str, seed: int, steps: int) -> np.ndarray:
    """Trains one model and returns the loss of each step, [steps]."""
    import keras
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.batches import RecordSource, training_batches
    from keras_bert.pretraining.objective import pretraining_objective
    from keras_bert.pretraining.records import find_records
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay
    from keras_bert.training.schedules import LinearWarmupDecay
    from keras_bert.training.step import make_train_steps

    keras.utils.set_random_seed(seed)
    data = find_records(str(records))
    vocab_size = len((records / "vocab.txt").read_text("utf-8").split("\n")) - 1
    config = replace(BertConfig.from_json("mini"), vocab_size=vocab_size)
    model = BertPretrainer(config, dtype=dtype)
    optimizer = AdamWeightDecay(LinearWarmupDecay(5e-4, steps, steps // 10))
    optimizer.build(model.trainable_variables)
    task = pretraining_objective()
    state, strategy = TrainState(model, optimizer, task), tf.distribute.get_strategy()
    train_steps = make_train_steps(strategy, state, TrainingSettings(steps, 16))
    batches = iter(training_batches(RecordSource(data, vocab_size), 16, seed))
    figures = [train_steps(batches, tf.constant(10)).numpy() for _ in range(steps // 10)]
    return np.concatenate([part.losses(task) for part in figures])


def main(_) -> None:
    """Runs all trainings and prints their losses side by side."""
    sys.path.insert(0, str(ROOT))
    records = make_records(Path(FLAGS.work_dir))
    losses = {name: train(records, *run, FLAGS.steps) for name, run in RUNS.items()}
    print("steps      " + "  ".join(f"{name:>21}" for name in losses))
    for first in range(0, FLAGS.steps, STRETCH):
        means = [loss[first : first + STRETCH].mean() for loss in losses.values()]
        print(f"{first + 1:4}-{first + STRETCH:4}  " + "  ".join(f"{mean:21.4f}" for mean in means))
    one, other, low = losses.values()
    for name, run in (("another seed", other), ("bfloat16", low)):
        gaps = [(run - one)[i : i + STRETCH].mean() for i in range(0, FLAGS.steps, STRETCH)]
        print(f"{name}: mean gap {np.mean(gaps):+.4f}, largest {np.abs(gaps).max():.4f}")


if __name__ == "__main__":
    app.run(main)
