"""Recomputation: the layers that a backward pass may run again instead of keeping what is within.

What a forward pass leaves for the backward one is most of the memory of training. A layer marked
with `recomputed` depends on nothing but its inputs and its variables (dropout is a function of
seeds, random_bits.py), so it can keep its inputs alone and run again on the way back. By itself
the mark does nothing; inside `recompute_with` every marked layer goes through the way given
(keras_bert/training/recomputation.py has TensorFlow's).
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
        The layer, or what the way in force makes of it; to be called like the layer.
    """
    recompute = _recompute.get()
    return recompute(layer) if recompute else layer


@contextlib.contextmanager
def recompute_with(recompute: Recompute) -> Iterator[None]:
    """Sends every layer marked in the block through a way to recompute it.

    Args:
        recompute: turns a layer into a function with the same arguments, result and gradients.

    Yields:
        Nothing.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    token = _recompute.set(recompute)
    try:
        yield
    finally:
        _recompute.reset(token)
