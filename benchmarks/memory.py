"""Measures the memory and time of a pre-training step of BERT-large at length 512.

    .venv/bin/python benchmarks/memory.py [--bert_config=large] [--batch_size=4] [--steps=2]

Each configuration (`--ways`) runs keras_bert's training step in its own process: float32 or
bfloat16, with or without `--gradient_checkpointing`, or with the optimizer's moments in bfloat16.

- state: memory in use between two steps: the weights, the two moments of the optimizer, the batch;
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
from statistics import median

from absl import app, flags
from training_contenders import example_batch, make_ours, read_config
from workers import check_names, table

# Name: (compute type, dtype of the moments, gradient checkpointing).
WAYS = {
    "float32": ("float32", "float32", False),
    "float32_checkpointing": ("float32", "float32", True),
    "bfloat16": ("bfloat16", "float32", False),
    "bfloat16_checkpointing": ("bfloat16", "float32", True),
    "bfloat16_state": ("bfloat16", "bfloat16", False),
    "bfloat16_state_checkpointing": ("bfloat16", "bfloat16", True),
}

flags.DEFINE_string("bert_config", "large", "bundled config")
flags.DEFINE_integer("batch_size", 4, "examples per step", lower_bound=1)
flags.DEFINE_integer("max_seq_length", 512, "tokens per example", lower_bound=1)
flags.DEFINE_integer("max_predictions_per_seq", 76, "masked tokens per example", lower_bound=1)
flags.DEFINE_integer("steps", 2, "timed steps per configuration", lower_bound=1)
flags.DEFINE_list("ways", list(WAYS), f"configurations, from {', '.join(WAYS)}")
flags.DEFINE_string("worker", None, "internal: the configuration to measure")
FLAGS = flags.FLAGS


def work(way: str) -> dict[str, float]:
    """Runs the steps of one configuration; returns the sizes in bytes and the seconds per step."""
    import tensorflow as tf

    batch = example_batch(FLAGS.batch_size, FLAGS.max_seq_length, FLAGS.max_predictions_per_seq)
    step = make_ours(read_config(FLAGS.bert_config), batch, *WAYS[way])
    step()
    memory, times = tf.config.experimental, []
    at_rest = memory.get_memory_info("CPU:0")["current"]
    memory.reset_memory_stats("CPU:0")
    for _ in range(FLAGS.steps):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    peak = memory.get_memory_info("CPU:0")["peak"]
    return {
        "state": at_rest,
        "step": peak - at_rest,
        "peak": peak,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "wall": median(wall for wall, _ in times),
        "cpu": median(cpu for _, cpu in times),
    }


def measure(way: str) -> list[str]:
    """Measures a configuration in a new process, and returns its row."""
    command = [sys.executable, *sys.argv, f"--worker={way}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return [way, f"exit code {done.returncode}", *[""] * 5]
    figures = json.loads(done.stdout.splitlines()[-1])
    sizes = [f"{figures[name] / 2**30:.2f}" for name in ("state", "step", "peak", "resident")]
    return [way, *sizes, f"{figures['wall']:.2f}", f"{figures['cpu']:.2f}"]


def main(_) -> None:
    """Measures each configuration, one after the other, and prints the table."""
    if FLAGS.worker:
        print(json.dumps(work(FLAGS.worker)))
        return
    check_names("ways", FLAGS.ways, WAYS)
    print(f"{FLAGS.bert_config}, {FLAGS.batch_size} x {FLAGS.max_seq_length} tokens; GiB\n")
    table(["", "state", "step", "peak", "resident", "s/step", "CPU s"], map(measure, FLAGS.ways))


if __name__ == "__main__":
    app.run(main)
