"""Marks layers that the backward pass may run again instead of keeping their activations.

The activations kept for the backward pass take most of the memory of training. The result of a
layer marked with `recomputed` depends only on its inputs and variables (dropout is a function of
seeds, common/random_bits.py), so the layer can keep only its inputs and run again in the backward
pass. By itself, the mark has no effect; within `recompute_with`, every marked layer is called
through the given function (keras_bert/training/recomputation.py for TensorFlow).
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

    The layer must be built, take tensors (or None) by position and return one tensor. Call the
    result instead of the layer: it is the layer itself, or its replacement by `recompute_with`.
    """
    recompute = _recompute.get()
    return recompute(layer) if recompute else layer


@contextlib.contextmanager
def recompute_with(recompute: Recompute) -> Iterator[None]:
    """Replaces every marked layer that is called within the block.

    Args:
        recompute: returns a function with the same arguments, result and gradients as a layer.

    Source: Chen et al. 2016, "Training deep nets with sublinear memory cost".
    """
    token = _recompute.set(recompute)
    try:
        yield
    finally:
        _recompute.reset(token)
