"""Implements gradient checkpointing (layers/recompute.py) with TensorFlow.

Each block keeps only its inputs. Its custom gradient runs the block again and differentiates the
second run. This run starts only when the gradient has reached the block, so the activations of only
one block are in memory at a time. (tf.recompute_grad would read the weights from the layer, and
accumulate their gradients in a copy at every call.)
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_bert.models.layers.recompute import recompute_with


@contextlib.contextmanager
def recomputing(model: keras.Model, *, fully_compiled: bool) -> Iterator[None]:
    """Returns a context in which a model's blocks keep only their inputs for the backward pass.

    In this context, call the model under a gradient tape that already watches its variables.
    `fully_compiled` is whether XLA compiles the entire function that is traced, rather than only
    its chains (fusion.py).
    """
    # The weights are read outside of any layer: a mixed-precision layer would return them cast,
    # and the cast copies would be kept for the backward pass.
    values = {id(variable): tf.convert_to_tensor(variable.value) for variable in model.variables}

    def recompute(layer: keras.layers.Layer) -> Callable[..., tf.Tensor]:
        weights = [values[id(variable)] for variable in layer.variables]

        def call(*inputs: Any) -> tf.Tensor:
            given = [x is not None for x in inputs]
            run = _recomputed(layer, given, fully_compiled)
            return run(*[x for x in inputs if x is not None], *weights)

        return call

    with recompute_with(recompute):
        yield


def _recomputed(
    layer: keras.layers.Layer, given: Sequence[bool], fully_compiled: bool
) -> Callable[..., tf.Tensor]:
    """Returns a function of the layer's inputs that are not None, followed by its weights.

    `given` has one value for each input of the layer: whether that input is not None.
    """
    count = sum(given)

    def forward(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        inputs = iter(tensors[:count])
        weights = zip(layer.variables, tensors[count:], strict=True)
        with keras.StatelessScope(list(weights)):
            return layer(*[next(inputs) if g else None for g in given])

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor | None]:
            again = _delay_until(upstream, tensors, fully_compiled)
            sources = [x for x in again if x.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                result = forward(again)
            gradients = tape.gradient(result, sources, upstream, unconnected_gradients="zero")
            rest = iter(gradients)
            return [next(rest) if x.dtype.is_floating else None for x in tensors]

        return forward(tensors), gradient

    return run


def _delay_until(
    upstream: tf.Tensor, tensors: Sequence[tf.Tensor], fully_compiled: bool
) -> list[tf.Tensor]:
    """Returns the tensors so that they are available only after the upstream gradient.

    Otherwise the second run could start early, or a compiler could merge it with the first one.
    """
    # XLA ignores control dependencies, but it cannot simplify 0 * x, which is NaN for x = NaN.
    if fully_compiled:
        first, *rest = tensors
        nothing = 0.0 * tf.reshape(upstream, [-1])[0]
        return [first + tf.cast(nothing, first.dtype), *rest]
    with tf.control_dependencies([upstream]):
        return [tf.identity(x) for x in tensors]
