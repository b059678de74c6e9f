"""Measures a BERT-base pre-training step of keras_bert, KerasHub, and transformers with torch.

    .venv/bin/python benchmarks/training_step.py [--steps=15] [--contenders=ours_bfloat16,...]

All contenders do the same work: 8 examples of 128 tokens with 20 predictions each, logits at the
masked positions only, masked-LM and next-sentence losses, dropout 0.1 on embeddings, attention
probabilities and both sublayers, gradients clipped to global norm 1, and AdamW with weight decay
0.01.
"""

import json
import subprocess
import sys
import time
from statistics import median

import numpy as np
from absl import app, flags
from training_contenders import CONTENDERS, HEADS, HIDDEN, LAYERS, WIDE, B, P, S, V, make_step
from workers import answer, start_worker

# KerasHub's fastest settings, in float32 and overall, and torch.
BASELINES = ("kerashub_float32_xla", "kerashub_bfloat16", "torch_float32")
DEFAULT = ["ours_float32", "ours_bfloat16", *BASELINES, "torch_bfloat16"]

flags.DEFINE_integer("steps", 15, "timed steps per contender", lower_bound=1)
flags.DEFINE_list("contenders", DEFAULT, f"contenders, from {', '.join(CONTENDERS)}")
flags.DEFINE_string("worker", None, "internal: the contender of the worker")
FLAGS = flags.FLAGS


def products() -> list[tuple[int, tuple, tuple, str]]:
    """Lists the matrix products of the forward pass.

    Returns (count, left shape [.., m, k], right shape [.., k, n], name) of each product.
    """
    heads = (B, HEADS, S, HIDDEN // HEADS)
    return [
        (4 * LAYERS, (B * S, HIDDEN), (HIDDEN, HIDDEN), "query, key, value, output"),
        (LAYERS, (B * S, HIDDEN), (HIDDEN, WIDE), "intermediate"),
        (LAYERS, (B * S, WIDE), (WIDE, HIDDEN), "output"),
        (LAYERS, heads, (B, HEADS, HIDDEN // HEADS, S), "scores"),
        (LAYERS, (B, HEADS, S, S), heads, "contexts"),
        (1, (B * P, HIDDEN), (HIDDEN, V), "vocabulary"),
    ]


def flops() -> float:
    """Counts the floating-point operations of a step's products, forward and backward."""
    return sum(3 * count * 2 * np.prod(left) * right[-1] for count, left, right, _ in products())


def ceiling(dtype: str) -> float:
    """Returns the seconds that oneDNN takes for a step's products alone, forward and backward."""
    import tensorflow as tf

    total = 0.0
    for count, left, right, _ in products():
        a, b, c = (
            tf.cast(tf.random.normal(shape), dtype)
            for shape in (left, right, (*left[:-1], right[-1]))
        )
        three = tf.function(
            lambda a, b, c: (
                tf.matmul(a, b),
                tf.matmul(c, b, transpose_b=True),
                tf.matmul(a, c, transpose_a=True),
            )
        )
        seconds = []
        for _ in range(8):
            start = time.perf_counter()
            three(a, b, c)
            seconds.append(time.perf_counter() - start)
        total += count * min(seconds)
    return total


def work(contender: str) -> None:
    """Runs a step for each line on stdin, and prints its seconds and loss as a line of JSON."""
    start = time.perf_counter()
    step = make_step(contender)
    step()
    first = time.perf_counter() - start
    step()
    bare = ceiling(contender.split("_")[1]) if contender.startswith("ours") else None
    print(json.dumps({"first": first, "ceiling": bare}), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        loss = step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"wall": wall, "cpu": cpu, "loss": loss}), flush=True)


def start(contender: str) -> subprocess.Popen:
    """Starts the process of a contender."""
    environment = ".venv" if contender.startswith("ours") else ".peers"
    return start_worker(environment, __file__, contender)


def ratio(times: dict[str, list[dict]], name: str, baseline: str, kind: str) -> float:
    """Returns the speed of a contender relative to a baseline: the median over the rounds.

    `times` is {contender: [{"wall": seconds, "cpu": seconds}]}; `kind` is "wall" or "cpu".
    """
    pairs = zip(times[name], times[baseline], strict=True)
    return median(theirs[kind] / ours[kind] for ours, theirs in pairs)


def report(times: dict[str, list[dict]], ready: dict[str, dict]) -> None:
    """Prints the table, and the share of the matrix products in keras_bert's step."""
    baselines = [name for name in BASELINES if name in times]
    print(f"\nBERT-base, {B} x {S} tokens, {P} predictions; x: speedup over, wall (CPU)")
    print(f"{'':22} first s  wall s  CPU s  examples/s  " + "  ".join(baselines))
    for name, rounds in times.items():
        wall, cpu = (median(t[kind] for t in rounds) for kind in ("wall", "cpu"))
        line = f"{name:22} {ready[name]['first']:7.0f} {wall:7.3f} {cpu:6.3f} {B / wall:11.2f}  "
        for baseline in baselines:
            against = [ratio(times, name, baseline, kind) for kind in ("wall", "cpu")]
            line += f"{against[0]:.2f} x ({against[1]:.2f})".ljust(len(baseline) + 2)
        print(line)
    for name in times:
        if bare := ready[name]["ceiling"]:
            wall = median(t["wall"] for t in times[name])
            print(
                f"{name}: {flops() / 1e9:.0f} GFLOP of products take {bare:.3f} s bare "
                f"({flops() / bare / 1e9:.0f} GFLOP/s), {bare / wall:.0%} of the step"
            )


def main(_) -> None:
    """Warms up the contenders, runs their turns and prints the table."""
    if FLAGS.worker:
        return work(FLAGS.worker)
    unknown = set(FLAGS.contenders) - set(CONTENDERS)
    if unknown:
        sys.exit(
            f"--contenders: {sorted(unknown)} unknown; expected some of {', '.join(CONTENDERS)}"
        )
    workers, ready = {}, {}
    for name in FLAGS.contenders:
        workers[name] = start(name)
        ready[name] = answer(workers[name])
        print(f"{name} warmed up in {ready[name]['first']:.0f} s", file=sys.stderr, flush=True)
    times = {name: [] for name in workers}
    for _ in range(FLAGS.steps):
        for name, worker in workers.items():
            worker.stdin.write("\n")
            worker.stdin.flush()
            times[name].append(answer(worker))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    return report(times, ready)


if __name__ == "__main__":
    app.run(main)
