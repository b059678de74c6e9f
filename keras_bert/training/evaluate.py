"""Runs a model on a finite dataset: evaluation, exact for any batch size, and prediction."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bert.models.encoder import select_inputs
from keras_bert.training.backend import BACKEND
from keras_bert.training.cluster import num_workers
from keras_bert.training.objective import AfterBatch, Batch, Objective
from keras_bert.training.step import SUM, compiled
from keras_bert.training.strategy import distribute, without_autotuning

Predict = Callable[[tf.data.Dataset], Iterator[tuple[Batch, dict[str, np.ndarray]]]]


def make_evaluate(
    strategy: Any, model: keras.Model, objective: Objective, *, jit_compile: bool = True
) -> Callable[..., dict[str, float]]:
    """Builds the function that evaluates a model, which was created under `strategy`, on a dataset.

    Returns:
        `evaluate(dataset, after_batch=None)`, which calls `after_batch` after each batch and
        returns {"loss": value} followed by {metric: value}. The dataset must be finite. Its batches
        have the same shape, and contain this worker's rows of the global batches.
    """

    def sums_and_weights(batch: Batch) -> Any:
        parts = objective.sums(model, batch, False), objective.weights(batch)
        return ops.stack([ops.stack([part[n] for n in objective.metrics]) for part in parts])

    if BACKEND == "jax":
        sum_batch, in_order = compiled_with_jax(model, sums_and_weights, jit_compile), _one_late
    else:
        sum_batch = _sum_over_replicas(strategy, compiled(sums_and_weights, jit_compile))
        in_order = iter  # `after_batch` measures the time of each batch.

    def evaluate(
        dataset: tf.data.Dataset, after_batch: AfterBatch | None = None
    ) -> dict[str, float]:
        total = np.zeros([2, len(objective.metrics)])
        for batch_sums in in_order(map(sum_batch, distribute(strategy, dataset))):
            total += np.asarray(batch_sums)
            if after_batch:
                after_batch()
        return objective.divide(total[0], total[1])

    return evaluate


def make_predict(strategy: Any, model: keras.Model, *, jit_compile: bool = True) -> Predict:
    """Builds the function that runs a model on a dataset.

    `model` is a network of keras_bert.models, with outputs {name: [B, ...]}.

    Returns:
        `predict(dataset)`, which yields rows of a batch and of the outputs, both
        {name: array [b, ...]}. With TensorFlow, these are the rows of each device of this worker,
        otherwise whole batches. The dataset must be finite. Its batches contain this worker's rows
        of the global batches, and may differ in sequence length.
    """
    if BACKEND == "tensorflow":
        return _predict_on_replicas(strategy, model, jit_compile)
    if BACKEND == "jax":
        run = compiled_with_jax(model, lambda batch: model(batch, training=False), jit_compile)

    def forward(inputs: Batch) -> dict[str, Any]:
        if BACKEND == "jax":
            return run(strategy.place(inputs))
        import torch  # An optional package.

        with torch.no_grad():
            return model({n: ops.convert_to_tensor(v) for n, v in inputs.items()}, training=False)

    def predict(dataset: tf.data.Dataset) -> Iterator[tuple[Batch, dict[str, np.ndarray]]]:
        batches = without_autotuning(dataset).as_numpy_iterator()
        results = ((batch, forward(select_inputs(batch))) for batch in batches)
        for batch, outputs in _one_late(results):
            yield batch, {name: ops.convert_to_numpy(value) for name, value in outputs.items()}

    return predict


def _one_late(results: Iterable[Any]) -> Iterator[Any]:
    """Yields each result when the next one has started.

    JAX and GPUs return before a result is computed. A caller that waits for a result would leave
    the device without work until it asks for the next one.
    """
    for previous, _ in itertools.pairwise(itertools.chain(results, [None])):
        yield previous


# --- TensorFlow ---


def _sum_over_replicas(
    strategy: tf.distribute.Strategy, function: Callable[[Batch], tf.Tensor]
) -> Callable[[Batch], tf.Tensor]:
    def on_replica(batch: Batch) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_reduce(SUM, function(batch))

    @tf.function(autograph=False)
    def run(batch: Batch) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(on_replica, args=(batch,)))[0]

    return run


def _predict_on_replicas(
    strategy: tf.distribute.Strategy, model: keras.Model, jit_compile: bool
) -> Predict:
    forward = compiled(lambda batch: model(select_inputs(batch), training=False), jit_compile)
    devices = strategy.num_replicas_in_sync // num_workers(strategy)

    def on_device(values: dict[str, tf.Tensor], device: int) -> dict[str, tf.Tensor]:
        return {n: strategy.experimental_local_results(v)[device] for n, v in values.items()}

    # Traced once for all sequence lengths.
    @tf.function(reduce_retracing=True, autograph=False)
    def run(batch: Batch) -> tuple[tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]], ...]:
        outputs = strategy.run(forward, args=(batch,))
        return tuple((on_device(batch, i), on_device(outputs, i)) for i in range(devices))

    def predict(dataset: tf.data.Dataset) -> Iterator[tuple[Batch, dict[str, np.ndarray]]]:
        for batch in distribute(strategy, dataset):
            for rows in run(batch):
                yield tuple({n: v.numpy() for n, v in part.items()} for part in rows)

    return predict


# --- JAX ---


def compiled_with_jax(
    model: keras.Model, function: Callable[[Batch], Any], jit_compile: bool = True
) -> Callable[[Batch], Any]:
    """Compiles a function of a batch that uses the model; each call reads the current weights."""
    import jax  # An optional package.

    from keras_bert.training.jax_attention import fused_attention

    variables = model.variables

    def with_weights(values: list[Any], batch: Batch) -> Any:
        mapping = zip(variables, values, strict=True)
        with keras.StatelessScope(mapping), fused_attention(model, batch):
            return function(batch)

    if jit_compile:
        with_weights = jax.jit(with_weights)
    return lambda batch: with_weights([variable.value for variable in variables], batch)
