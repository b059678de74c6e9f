"""Measures a BERT-base pre-training step of keras_bert, KerasHub, and transformers with torch.

    .venv/bin/python benchmarks/training_step.py [--rounds=15] [--contenders=ours_bfloat16,...]

All contenders do the same work (training_contenders.py): 8 examples of 128 tokens with 20
predictions each, dropout 0.1 on embeddings, attention probabilities and both sublayers. The last
lines compare keras_bert's step with its matrix products alone, as computed by oneDNN.
"""

import json
import sys
import time
from statistics import median

from absl import app, flags
from training_contenders import (
    Step,
    example_batch,
    make_kerashub,
    make_ours,
    make_torch,
    read_config,
    step_flops,
)
from workers import Worker, check_names, in_turn, ratio, table

CONTENDERS = (
    "ours_float32",
    "ours_bfloat16",
    "kerashub_float32_xla",
    "kerashub_bfloat16",
    "torch_float32",
    "torch_bfloat16",
    "kerashub_float32",
    "kerashub_bfloat16_xla",
)
# KerasHub's fastest settings, in float32 and overall, and torch.
BASELINES = ("kerashub_float32_xla", "kerashub_bfloat16", "torch_float32")
B, S, P = 8, 128, 20  # batch, length, predictions

flags.DEFINE_string("bert_config", "base", "bundled config")
flags.DEFINE_integer("rounds", 15, "timed steps per contender", lower_bound=1)
flags.DEFINE_list("contenders", list(CONTENDERS[:6]), f"contenders, from {', '.join(CONTENDERS)}")
flags.DEFINE_string("worker", None, "internal: the contender of the worker")
FLAGS = flags.FLAGS


def make_step(contender: str) -> Step:
    """Creates the function that runs one step of a contender and returns its loss."""
    library, dtype, *xla = contender.split("_")
    config, batch = read_config(FLAGS.bert_config), example_batch(B, S, P)
    if library == "ours":
        return make_ours(config, batch, dtype)
    if library == "kerashub":
        return make_kerashub(config, batch, dtype, xla=bool(xla))
    steps = make_torch(config, batch, dtype)
    return lambda: steps(1)


def product_seconds(dtype: str) -> float:
    """Returns the seconds that oneDNN takes for a step's products alone, forward and backward."""
    import tensorflow as tf

    config = read_config(FLAGS.bert_config)
    hidden, wide, layers, heads = (
        config[name]
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
        )
    )
    split = (B, heads, S, hidden // heads)
    # (count, left shape [.., m, k], right shape [.., k, n]) of each product of the forward pass.
    products = (
        (4 * layers, (B * S, hidden), (hidden, hidden)),  # query, key, value, output
        (layers, (B * S, hidden), (hidden, wide)),
        (layers, (B * S, wide), (wide, hidden)),
        (layers, split, (B, heads, hidden // heads, S)),  # scores
        (layers, (B, heads, S, S), split),  # contexts
        (1, (B * P, hidden), (hidden, config["vocab_size"])),
    )

    @tf.function
    def three(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return (
            tf.matmul(a, b),
            tf.matmul(c, b, transpose_b=True),
            tf.matmul(a, c, transpose_a=True),
        )

    total = 0.0
    for count, left, right in products:
        shapes = (left, right, (*left[:-1], right[-1]))
        operands = [tf.cast(tf.random.normal(shape), dtype) for shape in shapes]
        seconds = []
        for _ in range(8):
            start = time.perf_counter()
            three(*operands)
            seconds.append(time.perf_counter() - start)
        total += count * min(seconds)
    return total


def work(contender: str) -> None:
    """Runs a step for each line on stdin, and prints its seconds and loss as a line of JSON."""
    start = time.perf_counter()
    step = make_step(contender)
    step()
    ready = {"first": time.perf_counter() - start}
    step()
    if contender.startswith("ours"):
        ready["products"] = product_seconds(contender.split("_")[1])
    print(json.dumps(ready), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"wall": wall, "cpu": cpu, "loss": loss}), flush=True)


def main(_) -> None:
    """Warms up the contenders, runs their turns and prints the table."""
    if FLAGS.worker:
        return work(FLAGS.worker)
    check_names("contenders", FLAGS.contenders, CONTENDERS)
    config = f"--bert_config={FLAGS.bert_config}"
    workers = {name: Worker(__file__, name, None, config) for name in FLAGS.contenders}
    times = in_turn(workers, FLAGS.rounds)
    for worker in workers.values():
        worker.close()
    baselines = [name for name in BASELINES if name in times]
    print(f"\n{FLAGS.bert_config}, {B} x {S} tokens; x: speedup over, by wall-clock (CPU) time\n")
    rows, median_of = [], {}
    for name, rounds in times.items():
        wall, cpu = (median(each[kind] for each in rounds) for kind in ("wall", "cpu"))
        median_of[name] = wall
        ratios = [
            "{:.2f} ({:.2f})".format(
                *(ratio(times[base], rounds, kind) for kind in ("wall", "cpu"))
            )
            for base in baselines
        ]
        first = f"{workers[name].ready['first']:.0f}"
        rows.append([name, first, f"{wall:.3f}", f"{cpu:.2f}", f"{B / wall:.2f}", *ratios])
    table(
        ["", "first s", "s/step", "CPU s", "examples/s", *(f"x {base}" for base in baselines)],
        rows,
    )
    flops = step_flops(read_config(FLAGS.bert_config), B, S, P)
    for name, worker in workers.items():
        if seconds := worker.ready.get("products"):
            print(
                f"{name}: {flops / 1e9:.0f} GFLOP of products take {seconds:.3f} s alone "
                f"({flops / seconds / 1e9:.0f} GFLOP/s), {seconds / median_of[name]:.0%} of a step"
            )
    return None


if __name__ == "__main__":
    app.run(main)
