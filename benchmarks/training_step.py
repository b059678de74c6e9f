"""Measures a BERT-base pre-training step of keras_bert, KerasHub, and transformers with torch.

    .venv/bin/python benchmarks/training_step.py [--steps=15] [--contenders=ours_bfloat16,...]

All contenders do the same work: 8 examples of 128 tokens with 20 predictions each, logits at the
masked positions only, both losses, dropout 0.1 on embeddings, attention probabilities and both
sublayers, gradients clipped to global norm 1, and AdamW with weight decay 0.01.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from absl import app, flags
from workers import answer, start_worker

ROOT = Path(__file__).resolve().parents[1]

B, S, P, V = 8, 128, 20, 30522  # batch, length, predictions, vocabulary
HIDDEN, LAYERS, HEADS, WIDE = 768, 12, 12, 3072

CONTENDERS = {
    "ours_float32": "ours",
    "ours_bfloat16": "ours",
    "kerashub_float32_xla": "KerasHub",
    "kerashub_bfloat16_xla": "KerasHub",
    "kerashub_float32": "KerasHub",
    "kerashub_bfloat16": "KerasHub",
    "torch_float32": "transformers + torch",
    "torch_bfloat16": "transformers + torch, autocast",
}
# KerasHub's fastest settings, in float32 and overall, and torch.
BASELINES = ("kerashub_float32_xla", "kerashub_bfloat16", "torch_float32")
DEFAULT = ["ours_float32", "ours_bfloat16", *BASELINES, "torch_bfloat16"]

flags.DEFINE_integer("steps", 15, "timed steps per contender", lower_bound=1)
flags.DEFINE_list("contenders", DEFAULT, f"contenders, from {', '.join(CONTENDERS)}")
flags.DEFINE_string("worker", None, "internal: the contender of the worker")
FLAGS = flags.FLAGS

Step = Callable[[], float]


def example_batch() -> dict[str, np.ndarray]:
    """Creates one batch of random tokens, with the names of the records and without padding."""
    random = np.random.default_rng(0)
    positions = np.stack([random.choice(np.arange(1, S - 1), P, replace=False) for _ in range(B)])
    ints = {
        "input_ids": random.integers(1000, V, (B, S)),
        "input_mask": np.ones((B, S)),
        "segment_ids": np.repeat([[0] * (S // 2) + [1] * (S // 2)], B, axis=0),
        "masked_lm_positions": np.sort(positions, axis=1),
        "masked_lm_ids": random.integers(1000, V, (B, P)),
        "next_sentence_labels": random.integers(0, 2, (B,)),
        "dropout_seed": random.integers(0, 2**31 - 1, (B,)),
    }
    floats = {"masked_lm_weights": np.ones((B, P)), "example_weights": np.ones((B,))}
    return {k: v.astype("int32") for k, v in ints.items()} | {
        k: v.astype("float32") for k, v in floats.items()
    }


def make_ours(dtype: str) -> Step:
    """Creates a step of keras_bert with its model, optimizer, objective and training step."""
    sys.path.insert(0, str(ROOT))
    import tensorflow as tf

    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer
    from keras_bert.optimization.adamw import AdamWeightDecay
    from keras_bert.tasks.pretraining.objective import pretraining_objective
    from keras_bert.training.run import TrainingSettings
    from keras_bert.training.state import TrainState
    from keras_bert.training.step import make_train_steps

    config = BertConfig.from_json("base")
    model = BertPretrainer(config, dtype="mixed_bfloat16" if dtype == "bfloat16" else dtype)
    optimizer = AdamWeightDecay(1e-4)
    optimizer.build(model.trainable_variables)
    task = pretraining_objective()
    state, strategy = TrainState(model, optimizer, task), tf.distribute.get_strategy()
    train_steps = make_train_steps(strategy, state, TrainingSettings(1, B))
    batches = iter(tf.data.Dataset.from_tensors(example_batch()).repeat())

    def step() -> float:
        return float(train_steps(batches, tf.constant(1)).numpy().losses(task)[0])

    return step


def make_kerashub(dtype: str, xla: bool) -> Step:
    """Creates a step of KerasHub's BERT backbone and masked-LM head, in one tf.function."""
    import keras
    import keras_hub
    import tensorflow as tf

    if dtype == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=V,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=HIDDEN,
        intermediate_dim=WIDE,
        dropout=0.1,
        max_sequence_length=512,
    )
    masked_lm = keras_hub.layers.MaskedLMHead(
        vocabulary_size=V,
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",
    )
    next_sentence = keras.layers.Dense(2, dtype="float32")
    batch = {name: tf.constant(value) for name, value in example_batch().items()}
    names = {
        "token_ids": "input_ids",
        "padding_mask": "input_mask",
        "segment_ids": "segment_ids",
    }

    def loss_of() -> tf.Tensor:
        inputs = {theirs: batch[ours] for theirs, ours in names.items()}
        hidden = backbone(inputs, training=True)
        logits = masked_lm(hidden["sequence_output"], mask_positions=batch["masked_lm_positions"])
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["masked_lm_ids"], tf.cast(logits, tf.float32)
        )
        weights = batch["masked_lm_weights"]
        next_nll = tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["next_sentence_labels"], next_sentence(hidden["pooled_output"])
        )
        masked_loss = tf.reduce_sum(nll * weights) / (tf.reduce_sum(weights) + 1e-5)
        return masked_loss + tf.reduce_mean(next_nll)

    loss_of()  # Creates the variables.
    layers = (backbone, masked_lm, next_sentence)
    variables = list({id(v): v for layer in layers for v in layer.trainable_variables}.values())
    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0)
    optimizer.build(variables)

    @tf.function(jit_compile=xla)
    def train_step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of()
        gradients = tape.gradient(loss, [v.value for v in variables])
        optimizer.apply([tf.convert_to_tensor(g) for g in gradients], variables)
        return loss

    return lambda: float(train_step())


def make_torch(dtype: str) -> Step:
    """Creates a step of transformers' BERT, whose head gets only the masked positions too."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=V)  # Its defaults are BERT-base, dropout 0.1.
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True
    )
    batch = {name: torch.from_numpy(value) for name, value in example_batch().items()}
    batch |= {name: value.long() for name, value in batch.items() if "weights" not in name}
    rows = torch.arange(B)[:, None]

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            hidden, pooled = model.bert(
                input_ids=batch["input_ids"],
                attention_mask=batch["input_mask"],
                token_type_ids=batch["segment_ids"],
                return_dict=False,
            )
            masked = hidden[rows, batch["masked_lm_positions"]]
            logits, next_logits = model.cls(masked, pooled)
        cross_entropy = torch.nn.functional.cross_entropy
        labels = batch["masked_lm_ids"].flatten()
        loss = cross_entropy(logits.float().flatten(0, 1), labels)
        loss = loss + cross_entropy(next_logits.float(), batch["next_sentence_labels"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    return step


def make_step(contender: str) -> Step:
    """Creates the function that runs one step of a contender and returns its loss."""
    library, dtype, *rest = contender.split("_")
    if library == "ours":
        return make_ours(dtype)
    if library == "kerashub":
        return make_kerashub(dtype, rest == ["xla"])
    return make_torch(dtype)


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
    """Runs a step for each line on stdin, and prints its figures as a line of JSON."""
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
    """Returns the speed of a contender relative to a baseline: the median over the rounds."""
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
