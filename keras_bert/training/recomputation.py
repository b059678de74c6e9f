"""Gradient checkpointing: blocks of a model keep only their inputs, and run twice.

TensorFlow's side of layers/recompute.py. A block becomes a function of tensors, its weights among
them (tf.recompute_grad would take them from the layer, and adds to a copy of each at every call),
whose gradient runs the block again and goes back through that. The second run begins once the
gradient has come to the block, so at any time what lies within one block alone is in memory.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_bert.models.layers.recompute import recompute_with


@contextlib.contextmanager
def recomputing(model: keras.Model, *, whole: bool) -> Iterator[None]:
    """Makes the blocks of a model, called under a gradient tape, keep their inputs alone.

    Args:
        model: the model that is called; the tape watches its variables already.
        whole: whether XLA compiles all of what is traced here, not chains of it alone.

    Yields:
        Nothing.
    """
    # Read here, outside of any layer: inside one of mixed precision they come cast, and the casts
    # would be kept for the way back.
    values = {id(variable): tf.convert_to_tensor(variable.value) for variable in model.variables}

    def recompute(layer: keras.layers.Layer) -> Callable[..., tf.Tensor]:
        weights = [values[id(variable)] for variable in layer.variables]

        def call(*inputs: Any) -> tf.Tensor:
            given = [x is not None for x in inputs]
            run = _run_twice(layer, given, whole)
            return run(*[x for x in inputs if x is not None], *weights)

        return call

    with recompute_with(recompute):
        yield


def _run_twice(
    layer: keras.layers.Layer, given: Sequence[bool], whole: bool
) -> Callable[..., tf.Tensor]:
    """Makes a function of a layer's inputs that are `given`, followed by its weights."""
    count = sum(given)

    def forward(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        inputs = iter(tensors[:count])
        weights = zip(layer.variables, tensors[count:], strict=True)
        with keras.StatelessScope(list(weights)):
            return layer(*[next(inputs) if g else None for g in given])

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor | None]:
            again = _after(upstream, tensors, whole)
            sources = [x for x in again if x.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                result = forward(again)
            gradients = tape.gradient(result, sources, upstream, unconnected_gradients="zero")
            rest = iter(gradients)
            return [next(rest) if x.dtype.is_floating else None for x in tensors]

        return forward(tensors), gradient

    return run


def _after(upstream: tf.Tensor, tensors: Sequence[tf.Tensor], whole: bool) -> list[tf.Tensor]:
    """Returns the tensors, to be had no earlier than the gradient from above.

    Else nothing would hold the second run back, and a compiler would take it for the first.
    """
    if whole:  # XLA ignores control dependencies; 0 times something is not 0 for it (NaN).
        first, *rest = tensors
        nothing = 0.0 * tf.reshape(upstream, [-1])[0]
        return [first + tf.cast(nothing, first.dtype), *rest]
    with tf.control_dependencies([upstream]):
        return [tf.identity(x) for x in tensors]
