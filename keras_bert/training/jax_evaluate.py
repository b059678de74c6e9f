"""Evaluation and prediction with JAX, as evaluate.py and predict.py with TensorFlow."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from keras_bert.training.distribute import distribute, untuned
from keras_bert.training.jax_attention import fused_attention
from keras_bert.training.jax_devices import JaxDevices
from keras_bert.training.objective import AfterBatch, Batch, Objective

if TYPE_CHECKING:
    import tensorflow as tf


def make_evaluate(
    strategy: JaxDevices, model: keras.Model, task: Objective, *, jit_compile: bool = True
) -> Callable[..., dict[str, float]]:
    """Builds the function that scores a dataset.

    Args:
        strategy: the devices that the model was made under.
        model: the model that `task.sums` takes.
        task: the sums to report; padding examples of the last batch weigh nothing in it.
        jit_compile: compile; without it each operation runs by itself.

    Returns:
        `evaluate(dataset, after_batch=None)`: takes a finite dataset of global batches of one shape
        and what to call after each, and returns {"loss": value} followed by {figure: value}, summed
        in float64 over the batches.
    """

    def sums_and_weights(batch: Batch) -> jax.Array:
        parts = (task.sums(model, batch, False), task.weights(batch))
        return jnp.stack([jnp.stack([part[name] for name in task.figures]) for part in parts])

    forward = _pure(model, sums_and_weights, jit_compile)

    def evaluate(
        dataset: "tf.data.Dataset", after_batch: AfterBatch | None = None
    ) -> dict[str, float]:
        total = np.zeros([2, len(task.figures)])
        for batch in distribute(strategy, dataset):
            total += np.asarray(forward(batch))
            if after_batch:
                after_batch()
        return task.divide(total[0], total[1])

    return evaluate


def make_predict(
    strategy: JaxDevices, model: keras.Model, inputs: Sequence[str], *, jit_compile: bool = True
) -> "Callable[[tf.data.Dataset], Iterator[tuple[Batch, dict[str, np.ndarray]]]]":
    """Builds the function that runs a model over a dataset.

    Args:
        strategy: the devices that the model was made under.
        model: takes a dict of the inputs, gives a dict of outputs [B, ...].
        inputs: names in the batch that the model takes.
        jit_compile: compile; without it each operation runs by itself.

    Returns:
        `predict(dataset)`: takes a finite dataset of global batches, which may differ in length,
        and yields for each ({name: [B, ...]} of the batch, {name: [B, ...]} of the outputs), all
        of them arrays.
    """
    forward = _pure(model, lambda batch: model(batch, training=False), jit_compile)

    def predict(dataset: "tf.data.Dataset") -> Iterator[tuple[Batch, dict[str, np.ndarray]]]:
        for batch in untuned(dataset).as_numpy_iterator():
            outputs = forward(strategy.place({name: batch[name] for name in inputs}))
            yield batch, {name: np.asarray(value) for name, value in outputs.items()}

    return predict


def _pure(
    model: keras.Model, function: Callable[[Batch], Any], jit_compile: bool
) -> Callable[[Batch], Any]:
    """Compiles a function of a batch and the model's weights, which are read at each call."""
    variables = model.variables

    def of_weights(values: list[jax.Array], batch: Batch) -> Any:
        mapping = zip(variables, values, strict=True)
        with keras.StatelessScope(mapping), fused_attention(model.compute_dtype):
            return function(batch)

    if jit_compile:
        of_weights = jax.jit(of_weights)
    return lambda batch: of_weights([variable.value for variable in variables], batch)
