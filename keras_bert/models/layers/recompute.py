"""Marks the layers that a backward pass may run again instead of keeping their activations.

The activations that a forward pass keeps for the backward pass take most of the memory of training.
The result of a layer marked with `recomputed` depends on its inputs and variables alone (dropout is
a function of seeds, common/random_bits.py), so it can keep only its inputs and run again in the
backward pass. The mark alone does nothing; within `recompute_with` every marked layer is called
through the given function (keras_bert/training/recomputation.py has TensorFlow's).
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import keras

Recompute = Callable[[keras.layers.Layer], Callable[..., Any]]

_recompute: contextvars.ContextVar[Recompute | None] = contextvars.ContextVar(
    "recompute", default=None
)


def recomputed(layer: keras.layers.Layer) -> Callable[..., Any]:
    """Marks a layer that the backward pass may run again.

    Args:
        layer: built; takes tensors (or None) by position and returns one tensor.

    Returns:
        A function to call like the layer: the layer itself, or the one that `recompute_with` made
        of it.
    """
    recompute = _recompute.get()
    return recompute(layer) if recompute else layer


@contextlib.contextmanager
def recompute_with(recompute: Recompute) -> Iterator[None]:
    """Replaces every layer that is marked within the block.

    Args:
        recompute: makes of a layer a function with the same arguments, result and gradients.

    Yields:
        Nothing.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    token = _recompute.set(recompute)
    try:
        yield
    finally:
        _recompute.reset(token)
