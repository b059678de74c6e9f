"""Marks layers that the backward pass may run again instead of keeping their activations.

The activations kept for the backward pass take most of the memory of training. A marked layer can
keep only its inputs, because its result depends only on these and its variables (also with dropout,
see dropout.py). The mark has no effect by itself; during `recompute_with`, each marked layer is
replaced by a function (for TensorFlow, see keras_bert/training/step.py).
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

    The layer must be built, take tensors or None by position, and return one tensor. Call the
    result instead of the layer: it is the layer itself, or its replacement by `recompute_with`.
    """
    recompute = _recompute.get()
    return recompute(layer) if recompute else layer


@contextlib.contextmanager
def recompute_with(recompute: Recompute) -> Iterator[None]:
    """Replaces every marked layer during the block (Chen et al. 2016, sublinear memory cost).

    `recompute` takes a layer and returns a function with the same arguments, result and gradients.
    """
    token = _recompute.set(recompute)
    try:
        yield
    finally:
        _recompute.reset(token)
