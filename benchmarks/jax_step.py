"""Measures a pre-training step on an accelerator: keras_bert on JAX, and transformers + torch.

    python benchmarks/jax_step.py [--configs=base,large] [--lengths=128,512] [--tokens=32768]
    python benchmarks/jax_step.py --configs=tiny --lengths=32 --tokens=256 --product=256  # on a CPU

keras_bert needs jax, keras, absl-py, safetensors and tqdm; the other contender needs torch and
transformers. These packages may be in one environment or in two (`--torch_python`).

Both contenders do the same work, in bfloat16 with float32 weights: logits at the masked positions
only, masked-LM and next-sentence losses, dropout 0.1 on embeddings and sublayers, gradients clipped
to global norm 1, and AdamW with weight decay 0.01. keras_bert's training step always takes the
attention mask. torch's step is compiled, with scaled_dot_product_attention and fused AdamW; it gets
no mask, because no row is padded. With `--attention_dropout=0`, keras_bert uses cuDNN's fused
attention. With 0.1, keras_bert uses plain attention with its own dropout masks, which cuDNN cannot
generate; torch's attention stays fused.

Utilization (column "used") compares the operations per second in the step's matrix products (3
times those of the forward pass) with the rate of one large bfloat16 product with JAX or torch,
whichever is faster, on the same device.
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags
from workers import answer

ROOT = Path(__file__).resolve().parents[1]
V = 30522  # vocabulary size
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

# Runs a number of training steps and returns the loss of the last one.
Steps = Callable[[int], float]


def settings_of(config: str) -> dict:
    """Reads a bundled config, with V as its vocabulary size; both contenders use it."""
    path = ROOT / "keras_bert" / "configs" / f"{config}.json"
    return json.loads(path.read_text(encoding="utf-8")) | {"vocab_size": V}


def predictions_of(length: int) -> int:
    """Returns the number of masked tokens per row: 15% of its length, but 20 for length 128."""
    return 20 if length == 128 else max(1, round(0.15 * length))


def example_batch(length: int) -> dict[str, np.ndarray]:
    """Creates a batch of random tokens without padding: {name in pre-training records: array}."""
    random = np.random.default_rng(0)
    rows, count = FLAGS.tokens // length, predictions_of(length)
    places = [random.choice(np.arange(1, length - 1), count, replace=False) for _ in range(rows)]
    ints = {
        "input_ids": random.integers(1000, V, (rows, length)),
        "input_mask": np.ones((rows, length)),
        "segment_ids": np.repeat([np.arange(length) >= length // 2], rows, axis=0),
        "masked_lm_positions": np.sort(places, axis=1),
        "masked_lm_ids": random.integers(1000, V, (rows, count)),
        "next_sentence_labels": random.integers(0, 2, (rows,)),
        "dropout_seed": random.integers(0, 2**31 - 1, (rows,)),
    }
    floats = {"masked_lm_weights": np.ones((rows, count)), "example_weights": np.ones((rows,))}
    return {k: v.astype("int32") for k, v in ints.items()} | {
        k: v.astype("float32") for k, v in floats.items()
    }


def make_ours(config: str, length: int, dropout: float) -> Steps:
    """Creates keras_bert's training step on one device; imports of TensorFlow are disabled."""
    os.environ["KERAS_BACKEND"] = "jax"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    sys.modules["tensorflow"] = None  # An import of TensorFlow raises an ImportError.
    sys.path.insert(0, str(ROOT))
    import keras

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.pretraining.objective import pretraining_objective
    from keras_bert.training.jax_step import JaxDevices, make_train_steps
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay

    settings = settings_of(config) | {"attention_probs_dropout_prob": dropout}
    devices = JaxDevices(keras.distribution.list_devices()[:1])
    model = BertPretrainer(BertConfig.from_dict(settings), dtype="mixed_bfloat16")
    optimizer = AdamWeightDecay(1e-4)
    optimizer.build(model.trainable_variables)
    task = pretraining_objective()
    state = TrainState(model, optimizer, task)
    train_steps = make_train_steps(devices, state, TrainingSettings(1, 16))
    batches = itertools.repeat(devices.place(example_batch(length)))

    def steps(count: int) -> float:
        return float(train_steps(batches, count).losses(task)[-1])

    return steps


def make_torch(config: str, length: int, dropout: float) -> Steps:
    """Creates a compiled step of transformers' BERT."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = settings_of(config) | {"attention_probs_dropout_prob": dropout}
    theirs = transformers.BertConfig(**settings, attn_implementation="sdpa")
    model = transformers.BertForPreTraining(theirs).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    batch = {k: torch.from_numpy(v).to(device) for k, v in example_batch(length).items()}
    batch = {k: v if v.is_floating_point() else v.long() for k, v in batch.items()}
    rows = torch.arange(len(batch["input_ids"]), device=device)[:, None]
    cross_entropy = torch.nn.functional.cross_entropy

    @torch.compile
    def loss_of() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            hidden, pooled = model.bert(
                input_ids=batch["input_ids"],
                token_type_ids=batch["segment_ids"],
                return_dict=False,
            )
            masked = hidden[rows, batch["masked_lm_positions"]]
            logits, next_logits = model.cls(masked, pooled)
        loss = cross_entropy(logits.float().flatten(0, 1), batch["masked_lm_ids"].flatten())
        return loss + cross_entropy(next_logits.float(), batch["next_sentence_labels"])

    def steps(count: int) -> float:
        for _ in range(count):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return float(loss.detach())  # Waits for the device.

    return steps


def step_flops(config: str, length: int) -> float:
    """Counts the floating-point operations of a step's matrix products, forward and backward."""
    model = settings_of(config)
    hidden, wide = model["hidden_size"], model["intermediate_size"]
    rows = FLAGS.tokens // length
    layer = 2 * rows * length * (4 * hidden * hidden + 2 * hidden * wide + 2 * length * hidden)
    head = 2 * rows * predictions_of(length) * (hidden * V + hidden * hidden)
    return 3.0 * (model["num_hidden_layers"] * layer + head)


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


def work(spec: str) -> None:
    """Runs a round for each line on stdin; prints seconds per step and loss as a line of JSON."""
    contender, config, length, dropout = spec.split(":")
    make = {"ours": make_ours, "torch": make_torch}[contender]
    begin = time.perf_counter()
    steps = make(config, int(length), float(dropout))
    steps(1)
    first = time.perf_counter() - begin
    steps(WARM_UP)
    print(json.dumps({"first": first, "product": product_rate(contender)}), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        loss = steps(FLAGS.steps)
        seconds = (time.perf_counter() - begin) / FLAGS.steps
        print(json.dumps({"seconds": seconds, "loss": loss}), flush=True)


def start(contender: str, spec: str) -> subprocess.Popen:
    """Starts the process of a contender with the flags of this process."""
    python = FLAGS.torch_python if contender == "torch" else sys.executable
    own = [f"--{name}={FLAGS[name].value}" for name in ("tokens", "steps", "product")]
    return subprocess.Popen(
        [python, __file__, f"--worker={contender}:{spec}", *own],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def compare(config: str, length: int, dropout: str) -> None:
    """Compares the contenders with one config, length and dropout rate, and prints their rows."""
    workers, ready = {}, {}
    for contender in FLAGS.contenders:
        workers[contender] = start(contender, f"{config}:{length}:{dropout}")
        ready[contender] = answer(workers[contender])
    rounds = {contender: [] for contender in workers}
    for _ in range(FLAGS.rounds):
        for contender, worker in workers.items():
            worker.stdin.write("\n")
            worker.stdin.flush()
            rounds[contender].append(answer(worker))
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    ceiling = max(each["product"] for each in ready.values())
    flops = step_flops(config, length)
    for contender, answers in rounds.items():
        seconds = median(each["seconds"] for each in answers)
        line = (
            f"{config:6} {length:6} {dropout:>7}  {contender:5} {ready[contender]['first']:7.1f} "
            f"{seconds * 1000:9.2f} {FLAGS.tokens / length / seconds:10.1f} "
            f"{flops / seconds / 1e12:8.2f} {flops / seconds / ceiling:6.1%} "
            f"{answers[-1]['loss']:7.3f}"
        )
        if contender == "ours" and "torch" in rounds:
            pairs = zip(answers, rounds["torch"], strict=True)
            line += f"  {median(t['seconds'] / o['seconds'] for o, t in pairs):.2f} x torch"
        print(line, flush=True)


def main(_) -> None:
    """Compares the contenders with all settings, one after the other."""
    if FLAGS.worker:
        return work(FLAGS.worker)
    print("config length dropout  who   first s     ms/step examples/s  TFLOP/s   used    loss")
    settings = itertools.product(FLAGS.configs, FLAGS.lengths, FLAGS.attention_dropout)
    for config, length, dropout in settings:
        compare(config, int(length), dropout)
    return None


if __name__ == "__main__":
    app.run(main)
