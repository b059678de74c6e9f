"""How much memory does a pre-training step of BERT-large at length 512 take, and at what price?

    .venv/bin/python benchmarks/memory.py [--bert_config=large] [--batch_size=2] [--steps=2]

The product's own training step, plain, with gradient checkpointing (--gradient_checkpointing of the
programs), with the optimizer's moments in bfloat16 (--optimizer_state_dtype), and with both. Each
is a process of its own that makes the model, trains a few steps and ends: the resident memory at
its peak, less what the libraries alone hold before there is a model. Beside it what must be there
whatever the way: weights, gradients and moments. The rest is what the forward pass leaves for the
backward one, and scratch space (a few tenths of a GiB of it are the compiler's). Seconds are of a
step after the first, which compiles; CPU seconds are what counts on a busy machine.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags

ROOT = Path(__file__).resolve().parents[1]

# Name: (gradient checkpointing, type of the moments).
WAYS = {
    "plain": (False, "float32"),
    "gradient_checkpointing": (True, "float32"),
    "bfloat16_state": (False, "bfloat16"),
    "both": (True, "bfloat16"),
}

flags.DEFINE_string("bert_config", "large", "JSON file or the name of a bundled config")
flags.DEFINE_integer("batch_size", 2, "examples a step", lower_bound=1)
flags.DEFINE_integer("max_seq_length", 512, "pieces an example", lower_bound=1)
flags.DEFINE_integer("max_predictions_per_seq", 76, "masked pieces an example", lower_bound=1)
flags.DEFINE_enum("dtype", "bfloat16", ["float32", "bfloat16", "float16"], "compute type")
flags.DEFINE_bool("jit_compile", True, "compile with XLA, as the programs do")
flags.DEFINE_integer("steps", 2, "timed steps a way", lower_bound=1)
flags.DEFINE_list("ways", list(WAYS), f"of {', '.join(WAYS)}")
flags.DEFINE_string("worker", None, "internal: the way to measure")
FLAGS = flags.FLAGS


def example_batch(vocab_size: int) -> dict[str, np.ndarray]:
    """Makes one batch of random pieces under our records' names; nothing in it is padding."""
    rows, length, masked = FLAGS.batch_size, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq
    random = np.random.default_rng(0)
    positions = [random.choice(np.arange(1, length), masked, replace=False) for _ in range(rows)]
    ints = {
        "input_ids": random.integers(5, vocab_size, (rows, length)),
        "input_mask": np.ones((rows, length)),
        "segment_ids": np.zeros((rows, length)),
        "masked_lm_positions": np.sort(positions, axis=1),
        "masked_lm_ids": random.integers(5, vocab_size, (rows, masked)),
        "next_sentence_labels": random.integers(0, 2, (rows,)),
        "dropout_seed": random.integers(0, 2**31 - 1, (rows,)),
    }
    floats = {"masked_lm_weights": np.ones((rows, masked)), "example_weights": np.ones((rows,))}
    return {k: v.astype("int32") for k, v in ints.items()} | {
        k: v.astype("float32") for k, v in floats.items()
    }


def peak_bytes() -> int:
    """Returns the most memory that this process has had resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def work(way: str) -> dict[str, float]:
    """Trains a few steps in one way and returns its figures."""
    sys.path.insert(0, str(ROOT))
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.optimization.adamw import AdamWeightDecay
    from keras_bert.optimization.loss_scale import LossScale
    from keras_bert.tasks.pretraining.task import pretraining_task
    from keras_bert.training.step import make_train_steps
    from keras_bert.training.strategy import dtype_policy

    tf.zeros([1]) + 1.0  # TensorFlow starts.
    before = peak_bytes()
    gradient_checkpointing, state_dtype = WAYS[way]
    config = BertConfig.from_json(FLAGS.bert_config)
    model = BertPretrainer(config, dtype=dtype_policy(FLAGS.dtype))
    optimizer = AdamWeightDecay(1e-4, state_dtype=state_dtype)
    optimizer.build(model.trainable_variables)
    train_steps = make_train_steps(
        tf.distribute.get_strategy(),
        model,
        optimizer,
        pretraining_task(),
        jit_compile=FLAGS.jit_compile,
        gradient_checkpointing=gradient_checkpointing,
        loss_scale=LossScale(optimizer) if FLAGS.dtype == "float16" else None,
    )
    batches = iter(tf.data.Dataset.from_tensors(example_batch(config.vocab_size)).repeat())
    times = []
    for _ in range(1 + FLAGS.steps):
        start = time.perf_counter(), time.process_time()
        train_steps(batches, tf.constant(1)).numpy()
        times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    moment = 2 if state_dtype == "bfloat16" else 4
    return {
        "peak": peak_bytes() - before,
        "fixed": parameters * (4 + 4 + 2 * moment),
        "first": times[0][0],
        "wall": median(wall for wall, _ in times[1:]),
        "cpu": median(cpu for _, cpu in times[1:]),
    }


def main(_) -> None:
    """Measures each way in a fresh process, one after the other, and prints the table."""
    if FLAGS.worker:
        print(json.dumps(work(FLAGS.worker)))
        return
    unknown = set(FLAGS.ways) - set(WAYS)
    if unknown:
        sys.exit(f"--ways: {sorted(unknown)} are not among {', '.join(WAYS)}")
    print(
        f"{FLAGS.bert_config}, {FLAGS.batch_size} x {FLAGS.max_seq_length} pieces, "
        f"{FLAGS.max_predictions_per_seq} predictions, {FLAGS.dtype}, jit_compile="
        f"{FLAGS.jit_compile}; GiB"
    )
    print(f"{'':24}  peak  fixed  the rest  wall s  CPU s  first s")
    for way in FLAGS.ways:
        command = [sys.executable, *sys.argv, f"--worker={way}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        figures = json.loads(done.stdout.splitlines()[-1])
        peak, fixed = figures["peak"] / 2**30, figures["fixed"] / 2**30
        print(
            f"{way:24} {peak:5.2f} {fixed:6.2f} {peak - fixed:9.2f} "
            f"{figures['wall']:7.2f} {figures['cpu']:6.2f} {figures['first']:8.0f}",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
