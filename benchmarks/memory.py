"""Measures the memory and time of a pre-training step of BERT-large at length 512.

    .venv/bin/python benchmarks/memory.py [--bert_config=large] [--batch_size=4] [--steps=2]

Each configuration (`--ways`) runs keras_bert's training step in its own process: float32 or
bfloat16, with or without `--gradient_checkpointing`, or with the optimizer's moments in bfloat16.

- state: size of the weights and of the optimizer's two moments, from their shapes and dtypes;
- step: peak memory of a step minus the memory in use before it: the gradients, the activations kept
  for the backward pass, and scratch space. Checkpointing can reduce only this part;
- peak: peak number of bytes that TensorFlow's allocator had allocated during a step;
- resident: peak memory of the process, which the machine must have. It contains the peak, the
  libraries (about 1 GiB), compiled programs, and fragments kept by the allocator.
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

# Name: (compute type, gradient checkpointing, dtype of the moments).
WAYS = {
    "float32": ("float32", False, "float32"),
    "float32_checkpointing": ("float32", True, "float32"),
    "bfloat16": ("bfloat16", False, "float32"),
    "bfloat16_checkpointing": ("bfloat16", True, "float32"),
    "bfloat16_state": ("bfloat16", False, "bfloat16"),
    "bfloat16_state_checkpointing": ("bfloat16", True, "bfloat16"),
}

flags.DEFINE_string("bert_config", "large", "JSON file or the name of a bundled config")
flags.DEFINE_integer("batch_size", 4, "examples per step", lower_bound=1)
flags.DEFINE_integer("max_seq_length", 512, "tokens per example", lower_bound=1)
flags.DEFINE_integer("max_predictions_per_seq", 76, "masked tokens per example", lower_bound=1)
flags.DEFINE_bool("jit_compile", True, "compile with XLA, as the programs do")
flags.DEFINE_integer("steps", 2, "timed steps per configuration", lower_bound=1)
flags.DEFINE_list("ways", list(WAYS), f"configurations, from {', '.join(WAYS)}")
flags.DEFINE_string("worker", None, "internal: the configuration to measure")
FLAGS = flags.FLAGS


def example_batch(vocab_size: int) -> dict[str, np.ndarray]:
    """Creates a batch of random tokens without padding: {name in pre-training records: array}."""
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


def work(way: str) -> dict[str, float]:
    """Runs the steps of one configuration; returns the sizes in bytes and the seconds per step."""
    sys.path.insert(0, str(ROOT))
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.objective import pretraining_objective
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay
    from keras_bert.training.step import make_train_steps
    from keras_bert.training.strategy import dtype_policy

    dtype, gradient_checkpointing, state_dtype = WAYS[way]
    config = BertConfig.from_json(FLAGS.bert_config)
    model = BertPretrainer(config, dtype=dtype_policy(dtype))
    optimizer = AdamWeightDecay(1e-4, state_dtype=state_dtype)
    optimizer.build(model.trainable_variables)
    settings = TrainingSettings(
        1, 1, jit_compile=FLAGS.jit_compile, gradient_checkpointing=gradient_checkpointing
    )
    state = TrainState(model, optimizer, pretraining_objective())
    train_steps = make_train_steps(tf.distribute.get_strategy(), state, settings)
    batches = iter(tf.data.Dataset.from_tensors(example_batch(config.vocab_size)).repeat())

    def step() -> tuple[float, float]:
        start = time.perf_counter(), time.process_time()
        train_steps(batches, tf.constant(1)).numpy()
        return time.perf_counter() - start[0], time.process_time() - start[1]

    step()
    memory = tf.config.experimental
    at_rest = memory.get_memory_info("CPU:0")["current"]
    memory.reset_memory_stats("CPU:0")
    times = [step() for _ in range(FLAGS.steps)]
    peak = memory.get_memory_info("CPU:0")["peak"]
    parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return {
        "state": parameters * (4 + 2 * (2 if state_dtype == "bfloat16" else 4)),
        "step": peak - at_rest,
        "peak": peak,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "wall": median(wall for wall, _ in times),
        "cpu": median(cpu for _, cpu in times),
    }


def main(_) -> None:
    """Measures each configuration in a new process, one after the other, and prints the table."""
    if FLAGS.worker:
        print(json.dumps(work(FLAGS.worker)))
        return
    unknown = set(FLAGS.ways) - set(WAYS)
    if unknown:
        sys.exit(f"--ways: {sorted(unknown)} unknown; expected some of {', '.join(WAYS)}")
    print(
        f"{FLAGS.bert_config}, {FLAGS.batch_size} x {FLAGS.max_seq_length} tokens, "
        f"{FLAGS.max_predictions_per_seq} predictions, jit_compile={FLAGS.jit_compile}; GiB"
    )
    print(f"{'':28}  state   step   peak  resident  wall s  CPU s")
    for way in FLAGS.ways:
        command = [sys.executable, *sys.argv, f"--worker={way}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(f"{way:28} ended with {done.returncode}", flush=True)
            continue
        figures = json.loads(done.stdout.splitlines()[-1])
        state, step, peak, resident = (
            figures[name] / 2**30 for name in ("state", "step", "peak", "resident")
        )
        print(
            f"{way:28} {state:6.2f} {step:6.2f} {peak:6.2f} {resident:9.2f} "
            f"{figures['wall']:7.2f} {figures['cpu']:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
