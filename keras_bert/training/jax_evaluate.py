"""Evaluates and predicts with JAX, as evaluate.py does with TensorFlow."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from keras_bert.models.encoder import select_inputs
from keras_bert.training.jax_attention import fused_attention
from keras_bert.training.jax_step import JaxDevices
from keras_bert.training.objective import AfterBatch, Batch, Objective
from keras_bert.training.strategy import distribute, without_autotuning

if TYPE_CHECKING:
    import tensorflow as tf


def make_evaluate(
    strategy: JaxDevices, model: keras.Model, task: Objective, *, jit_compile: bool = True
) -> Callable[..., dict[str, float]]:
    """Builds the function that evaluates a model on a dataset (see evaluate.py).

    Without `jit_compile`, the forward pass runs eagerly.
    """

    def sums_and_weights(batch: Batch) -> jax.Array:
        parts = (task.sums(model, batch, False), task.weights(batch))
        return jnp.stack([jnp.stack([part[name] for name in task.metrics]) for part in parts])

    forward = pure(model, sums_and_weights, jit_compile)

    def evaluate(
        dataset: "tf.data.Dataset", after_batch: AfterBatch | None = None
    ) -> dict[str, float]:
        total = np.zeros([2, len(task.metrics)])
        for sums in _one_late(map(forward, distribute(strategy, dataset))):
            total += np.asarray(sums)
            if after_batch:
                after_batch()
        return task.divide(total[0], total[1])

    return evaluate


def make_predict(
    strategy: JaxDevices, model: keras.Model, *, jit_compile: bool = True
) -> "Callable[[tf.data.Dataset], Iterator[tuple[Batch, dict[str, np.ndarray]]]]":
    """Builds the function that runs a model on a dataset (see evaluate.py).

    The function yields batches as a whole, not by device. Without `jit_compile`, the forward pass
    runs eagerly.
    """
    forward = pure(model, lambda batch: model(batch, training=False), jit_compile)

    def predict(dataset: "tf.data.Dataset") -> Iterator[tuple[Batch, dict[str, np.ndarray]]]:
        batches = without_autotuning(dataset).as_numpy_iterator()
        results = ((batch, forward(strategy.place(select_inputs(batch)))) for batch in batches)
        for batch, outputs in _one_late(results):
            yield batch, {name: np.asarray(value) for name, value in outputs.items()}

    return predict


def _one_late(results: Iterable[Any]) -> Iterator[Any]:
    """Yields each result when the next one has started.

    JAX returns before a result is computed. A caller that waits for a result would leave the device
    without work until it asks for the next one.
    """
    for previous, _ in itertools.pairwise(itertools.chain(results, [None])):
        yield previous


def pure(
    model: keras.Model, function: Callable[[Batch], Any], jit_compile: bool
) -> Callable[[Batch], Any]:
    """Compiles a function of a batch that uses the model; each call reads the current weights."""
    variables = model.variables

    def of_weights(values: list[jax.Array], batch: Batch) -> Any:
        mapping = zip(variables, values, strict=True)
        with keras.StatelessScope(mapping), fused_attention(model, batch):
            return function(batch)

    if jit_compile:
        of_weights = jax.jit(of_weights)
    return lambda batch: of_weights([variable.value for variable in variables], batch)
