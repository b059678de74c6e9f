"""Trains on given batches with JAX, on one and on two devices, without TensorFlow.

    KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=2 \
        python tests/training/steps_on_jax.py FOLDER

Reads from FOLDER: `model/`, a model directory; `batches.npz`, "STEP/FEATURE" arrays; `tensorflow/`,
a checkpoint. Writes into FOLDER: `CASE.npz`, the weights by path and the "metrics/NAME" of each
case; `jax/`, the checkpoint as JAX read it; `facts.json`.
"""

import json
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    sys.modules["tensorflow"] = None  # Any import of TensorFlow now raises ImportError.

import jax
import keras
import numpy as np
from jax import numpy as jnp

from keras_bert.checkpoints.hugging_face import open_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.models.attention import (
    SelfAttention,
    attend_with,
    biased,
    biased_activation,
    residual_norm,
)
from keras_bert.models.layers import (
    BiasAndNorm,
    NormWeights,
    Summands,
    gelu_erf,
    gelu_tanh,
    sum_norm,
)
from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.training import jax_kernels, jax_step
from keras_bert.training.checkpoint import CheckpointWriter, restore_latest
from keras_bert.training.jax_attention import attend
from keras_bert.training.jax_kernels import kernel_of
from keras_bert.training.jax_step import JaxDevices, make_train_steps
from keras_bert.training.objective import StepMetrics, TrainingSettings, TrainState
from keras_bert.training.optimizers import AdamWeightDecay, LinearWarmupDecay
from tests.training import attention_on_jax

DEVICES = keras.distribution.list_devices()
CASES = {
    "one": (JaxDevices(DEVICES[:1]), {}),
    "data_parallel": (
        JaxDevices(DEVICES),
        {"gradient_accumulation_steps": 2, "gradient_checkpointing": True},
    ),
    "model_parallel": (JaxDevices(DEVICES, model_parallel=2), {}),
    # The last of three micro-batches is padding.
    "growing": (JaxDevices(DEVICES[:1]), {"gradient_accumulation_steps": 3}),
    # As on accelerators, chains run again in the backward pass.
    "chains": (JaxDevices(DEVICES), {}),
}


class StepCompilations(logging.Handler):
    """Counts the compilations of training steps."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        jax.config.update("jax_log_compiles", True)
        logging.getLogger("jax._src.dispatch").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Counts the log line of a compilation."""
        self.count += record.getMessage().startswith("Finished XLA compilation of jit(step)")


def make(devices: JaxDevices, folder: Path) -> tuple[BertPretrainer, AdamWeightDecay]:
    """Returns the model with its initial weights, and an optimizer for it."""
    directory = open_model_directory(folder / "model")
    with devices.scope():
        model = BertPretrainer(directory.config)
        directory.load_into(model)
        optimizer = AdamWeightDecay(LinearWarmupDecay(1e-3, 50, 2))
        optimizer.build(model.trainable_variables)
    return model, optimizer


def grown(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the batch padded by half its size: every third row is padding."""
    places = np.arange(1, 1 + len(batch["example_weights"]) // 2) * 2
    return {name: np.insert(value, places, 0, axis=0) for name, value in batch.items()}


def as_on_accelerators() -> AbstractContextManager:
    """Makes chains run again in the backward pass, and some use the gradients for NVIDIA GPUs."""
    return mock.patch.multiple(
        jax_step, recomputes_chains=lambda: True, _multiplies_bfloat16=lambda device: True
    )


def traced(folder: Path, batch: dict[str, np.ndarray]) -> tuple[int, int]:
    """Traces a step without running it.

    Returns:
        The number of bytes that the forward pass keeps for the backward pass, and the number of
        scatter operations in the step.
    """
    jit, value_and_grad, facts = jax.jit, jax.value_and_grad, []

    def measured(function, **settings):
        def call(*arguments):
            kept = jax.eval_shape(lambda *x: jax.vjp(function, *x, has_aux=True)[1], *arguments)
            facts.append(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(kept)))
            return value_and_grad(function, **settings)(*arguments)

        return call

    def lowered(function, **settings):
        def call(*arguments):
            text = jit(function, **settings).lower(*arguments).as_text()
            facts.append(text.count("stablehlo.scatter"))
            raise InterruptedError

        return call if function.__name__ == "step" else jit(function, **settings)

    devices, _ = CASES["one"]
    model, optimizer = make(devices, folder)
    state = TrainState(model, optimizer, PretrainingObjective())
    with (
        mock.patch.object(jax, "value_and_grad", measured),
        mock.patch.object(jax, "jit", lowered),
        as_on_accelerators(),
        suppress(InterruptedError),
    ):
        make_train_steps(devices, state, TrainingSettings(1, len(batch)))(iter([batch]), 1)
    residual_bytes, scatters = facts
    return residual_bytes, scatters


def packed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the batch with its two segments as the two examples of each row."""
    ids, labels = batch["input_ids"], batch["next_sentence_labels"]
    example = {
        "example_ids": batch["segment_ids"] + batch["input_mask"],
        "position_ids": np.arange(ids.shape[1]) + np.zeros_like(ids),
        "next_sentence_positions": np.stack([0 * labels, 0 * labels + ids.shape[1] // 2], axis=1),
        "next_sentence_labels": np.stack([labels] * 2, axis=1),
        "next_sentence_weights": np.ones((len(ids), 2), np.float32),
    }
    return batch | {
        k: v if v.dtype == np.float32 else v.astype(np.int32) for k, v in example.items()
    }


def shard_shapes(variables: list[keras.Variable]) -> dict[str, list[int]]:
    """Returns the shape of each variable's shard on the first device."""
    return {v.path: list(v.value.addressable_shards[0].data.shape) for v in variables}


def fused_difference(batch: dict[str, np.ndarray], causal: bool = False) -> float:
    """Returns the largest difference between fused and plain attention for a batch's masks."""
    layer = SelfAttention(
        BertConfig(1, 16, num_attention_heads=2, initializer_range=0.3, is_decoder=causal)
    )
    layer.build((None, None, 16))
    shape = (*batch["input_mask"].shape, 16)
    hidden = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    arguments = (hidden, batch["input_mask"], None, batch.get("example_ids"))
    plain = jax.jit(lambda: layer(*arguments))()
    with attend_with(partial(attend, implementation="xla")):
        fused = jax.jit(lambda: layer(*arguments))()
    return float(abs(fused - plain).max())


def kernel_difference(chain: Callable, devices: JaxDevices, dtype: str) -> float:
    """Returns the largest relative difference of a kernel's results and gradients to a chain's."""
    random = np.random.default_rng(0)
    batch = {name: random.normal(size=(4, 8, 192)) for name in ("product", "x", "upstream")}
    placed = devices.place({name: value.astype(np.float32) for name, value in batch.items()})
    product, x, upstream = (value.astype(dtype) for value in placed.values())
    weights = BiasAndNorm(*random.normal(size=(3, 192)).astype(np.float32))
    tables = [random.normal(size=(size, 192)).astype(np.float32) for size in (8, 2)]
    integers = {"key": np.arange(4), "segment_ids": random.integers(2, size=(4, 8))}
    integers = {name: value.astype(np.int32) for name, value in integers.items()}
    key, segment_ids = devices.place(integers).values()

    def results(function: Callable) -> list[np.ndarray]:
        dropout = {"drop_key": key, "rate": 0.1, "epsilon": 1e-12}
        if chain is residual_norm:
            settings, inputs = dropout, (product, x, weights)
        elif chain is sum_norm:
            of_embeddings = function

            def function(words: Any, positions: Any, table: Any, *weights: Any, **settings: Any):
                summands = Summands(words, positions, table, segment_ids)
                return of_embeddings(summands, NormWeights(*weights), **settings)

            settings = dropout | {"dtype": dtype}
            inputs = x.astype("float32"), *tables, *weights[1:]
        elif chain is biased_activation:
            activation = gelu_erf if dtype == "float32" else gelu_tanh
            settings, inputs = {"activation": activation}, (product, weights.bias)
        else:
            settings, inputs = {}, (product, weights.bias)
        output, pull = jax.vjp(lambda *inputs: function(*inputs, **settings), *inputs)
        return [np.asarray(each, np.float32) for each in [output, *jax.tree.leaves(pull(upstream))]]

    kernel = kernel_of(chain.__wrapped__, getattr(product.sharding, "mesh", None), interpret=True)
    with mock.patch.object(jax_kernels, "_PROGRAMS", 1):  # Programs compute two tiles.
        pairs = list(zip(results(chain.__wrapped__), results(kernel), strict=True))
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in pairs)


def error_for_an_odd_vocabulary(folder: Path) -> str:
    """Returns the error message for a vocabulary that cannot be split over two devices."""
    config = replace(open_model_directory(folder / "model").config, vocab_size=51)
    try:
        with JaxDevices(DEVICES, model_parallel=2).scope():
            BertPretrainer(config)
    except InputError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    """Runs every case and writes the results."""
    stored = np.load(folder / "batches.npz")
    steps = 1 + max(int(name.split("/")[0]) for name in stored)
    batches = [
        {name.split("/")[1]: stored[name] for name in stored if name.startswith(f"{step}/")}
        for step in range(steps)
    ]
    facts = {"devices": len(DEVICES), "compilations": {}}
    compilations = StepCompilations()
    for case, (devices, how) in CASES.items():
        model, optimizer = make(devices, folder)
        state = TrainState(model, optimizer, PretrainingObjective())
        train_steps = make_train_steps(devices, state, TrainingSettings(steps, 8, **how))
        placed = map(devices.place, map(grown, batches) if case == "growing" else batches)
        compilations.count = 0
        with as_on_accelerators() if case == "chains" else nullcontext():
            calls = [train_steps(placed, 5).numpy() for _ in range(steps // 5)]
        metrics = StepMetrics(*map(np.concatenate, zip(*calls, strict=True)))._asdict()
        facts["compilations"][case] = compilations.count
        weights = {v.path: keras.ops.convert_to_numpy(v) for v in model.trainable_variables}
        np.savez(
            folder / f"{case}.npz",
            **{f"metrics/{name}": value for name, value in metrics.items()},
            **weights,
        )
        facts[case] = shard_shapes([*model.trainable_variables, *optimizer.variables])
    model, optimizer = make(JaxDevices(DEVICES, model_parallel=2), folder)
    facts["restored_step"] = restore_latest(folder / "tensorflow", model, optimizer)
    writer = CheckpointWriter(folder / "jax")
    writer.save(facts["restored_step"], model, optimizer)
    writer.close()
    facts["fused_difference"] = {
        "an_example_a_row": fused_difference(batches[0]),
        "packed": fused_difference(packed(batches[0])),
        "causal": fused_difference(batches[0], causal=True),
    }
    facts["kernel_difference"] = {
        f"{chain.__name__}, {dtype}, {len(names)} devices": kernel_difference(
            chain, JaxDevices(names), dtype
        )
        for chain in (residual_norm, sum_norm, biased_activation, biased)
        for names, dtype in ((DEVICES[:1], "bfloat16"), (DEVICES, "float32"))
    }
    facts["attention_difference"] = attention_on_jax.differences()
    facts["dropped_elements"] = attention_on_jax.dropped_elements()
    facts["layer_difference"] = attention_on_jax.layer_difference()
    twice = {name: np.concatenate([value] * 2) for name, value in batches[0].items()}
    cases = {"once": batches[0], "twice": twice, "packed": packed(batches[0])}
    sizes, facts["scatters"] = {}, {}
    for case, batch in cases.items():
        sizes[case], facts["scatters"][case] = traced(folder, batch)
    tokens = batches[0]["input_ids"].size
    facts["residual_bytes_per_token"] = (sizes["twice"] - sizes["once"]) / tokens
    # Integers of this size overflow in JAX.
    flops = BertConfig(30522, 768, 12, 12, 3072).flops_per_row
    facts["flops"] = float(flops(512, jnp.float32(77.0))), flops(512, 77)
    facts["odd_vocabulary"] = error_for_an_odd_vocabulary(folder)
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
