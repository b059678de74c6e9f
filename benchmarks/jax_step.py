"""Measures a pre-training step on an accelerator: keras_bert on JAX, and transformers + torch.

    python benchmarks/jax_step.py [--configs=base,large] [--lengths=128,512] [--tokens=32768]
    python benchmarks/jax_step.py --configs=tiny --lengths=32 --tokens=256 --product=256  # on a CPU

keras_bert needs jax, keras, absl-py, safetensors and tqdm; the other contender needs torch and
transformers. These packages may be in one environment or in two (`--torch_python`).

Both contenders do the same work (training_contenders.py), in bfloat16 with float32 weights and
dropout 0.1 on embeddings and sublayers. keras_bert's training step always takes the attention mask.
torch's step is compiled, with scaled_dot_product_attention and fused AdamW; it gets no mask,
because no row is padded. With `--attention_dropout=0`, keras_bert uses cuDNN's fused attention;
with 0.1, kernels that generate its own dropout masks.

Utilization (column "used") compares the operations per second in the step's matrix products (3
times those of the forward pass) with the rate of one large bfloat16 product with JAX or torch,
whichever is faster, on the same device.
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags
from training_contenders import example_batch, make_jax, make_torch, read_config, step_flops
from workers import Worker, in_turn, ratio, table

WARM_UP = 3  # steps before the first timed step

flags.DEFINE_list("configs", ["base", "large"], "bundled configs")
flags.DEFINE_list("lengths", ["128", "512"], "tokens per row")
flags.DEFINE_list("attention_dropout", ["0", "0.1"], "dropout rates of the attention probabilities")
flags.DEFINE_integer("tokens", 32_768, "tokens per step; a batch has tokens / length rows")
flags.DEFINE_integer("rounds", 5, "rounds; the contenders take turns", lower_bound=1)
flags.DEFINE_integer("steps", 10, "steps per round", lower_bound=1)
flags.DEFINE_integer(
    "product", 8192, "size of the square matrices whose product measures the peak rate"
)
flags.DEFINE_string(
    "torch_python", sys.executable, "Python interpreter with torch and transformers"
)
flags.DEFINE_list("contenders", ["ours", "torch"], "contenders, from ours, torch")
flags.DEFINE_string("worker", None, "internal: contender:config:length:dropout")
FLAGS = flags.FLAGS


def predictions_of(length: int) -> int:
    """Returns the number of masked tokens per row: 15% of its length, but 20 for length 128."""
    return 20 if length == 128 else max(1, round(0.15 * length))


def product_rate(contender: str) -> float:
    """Returns operations per second of large bfloat16 matrix products.

    This is the best of five runs of ten products each.
    """
    size, count = FLAGS.product, 10
    values = np.random.default_rng(0).normal(size=(2, size, size)).astype(np.float32)
    if contender == "ours":
        import jax

        a, b = jax.numpy.asarray(values, "bfloat16")
        multiply = jax.jit(jax.numpy.matmul)

        def run() -> None:
            jax.block_until_ready([multiply(a, b) for _ in range(count)])

    else:
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        a, b = torch.from_numpy(values).to(device, torch.bfloat16)

        def run() -> None:
            for _ in range(count):
                a @ b
            if device == "cuda":
                torch.cuda.synchronize()

    run()
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return count * 2.0 * size**3 / min(seconds)


def work(contender: str, config_name: str, length: int, dropout: float) -> None:
    """Runs a round for each line on stdin; prints seconds per step and loss as a line of JSON."""
    config = read_config(config_name) | {"attention_probs_dropout_prob": dropout}
    batch = example_batch(FLAGS.tokens // length, length, predictions_of(length))
    begin = time.perf_counter()
    if contender == "ours":
        os.environ["KERAS_BACKEND"] = "jax"
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        steps = make_jax(config, batch)
    else:
        steps = make_torch(config, batch, "bfloat16", compiled=True)
    steps(1)
    first = time.perf_counter() - begin
    steps(WARM_UP)
    print(json.dumps({"first": first, "product": product_rate(contender)}), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = steps(FLAGS.steps)
        seconds = (time.perf_counter() - begin) / FLAGS.steps
        print(json.dumps({"seconds": seconds, "loss": loss}), flush=True)


def compare(config: str, length: int, dropout: str) -> list[list[object]]:
    """Compares the contenders with one config, length and dropout rate; returns their rows."""
    pythons = {"ours": Path(sys.executable), "torch": Path(FLAGS.torch_python)}
    settings = [f"--{name}={FLAGS[name].value}" for name in ("tokens", "steps", "product")]
    workers = {
        name: Worker(__file__, f"{name}:{config}:{length}:{dropout}", pythons[name], *settings)
        for name in FLAGS.contenders
    }
    times = in_turn(workers, FLAGS.rounds)
    for worker in workers.values():
        worker.close()
    ceiling = max(worker.ready["product"] for worker in workers.values())
    rows = FLAGS.tokens // length
    flops = step_flops(read_config(config), rows, length, predictions_of(length))
    lines = []
    for name, answers in times.items():
        seconds = median(each["seconds"] for each in answers)
        line = [config, length, dropout, name, f"{workers[name].ready['first']:.1f}"]
        line += [f"{1000 * seconds:.2f}", f"{rows / seconds:.1f}", f"{flops / seconds / 1e12:.2f}"]
        line += [f"{flops / seconds / ceiling:.1%}", f"{answers[-1]['loss']:.3f}"]
        speedup = f"{ratio(times['torch'], answers, 'seconds'):.2f}" if "torch" in times else ""
        lines.append([*line, speedup])
    return lines


def main(_) -> None:
    """Compares the contenders with all settings, one after the other."""
    if FLAGS.worker:
        contender, config, length, dropout = FLAGS.worker.split(":")
        return work(contender, config, int(length), float(dropout))
    settings = itertools.product(FLAGS.configs, FLAGS.lengths, FLAGS.attention_dropout)
    header = ["config", "length", "dropout", "", "first s", "ms/step", "examples/s", "TFLOP/s"]
    rows = (row for config, length, rate in settings for row in compare(config, int(length), rate))
    table([*header, "used", "loss", "x torch"], rows)
    return None


if __name__ == "__main__":
    app.run(main)
