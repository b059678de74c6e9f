"""Computes the factor that clips gradients by their global norm.

Gradients must be those of the global batch, after accumulation and all-reduce. The weight update
multiplies them by the factor, so clipped gradients are never stored.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_bert.common.errors import InputError
from keras_bert.optimization.dense import densify


def global_norm(gradients: Sequence[Any]) -> Any:
    """Returns the norm of all gradients as one vector, a float32 scalar; ignores None entries."""
    dense = [ops.cast(densify(g), "float32") for g in gradients if g is not None]
    return ops.sqrt(sum(ops.sum(ops.square(g)) for g in dense))


def clip_scale(norm: Any, max_norm: float = 1.0) -> Any:
    """Returns the factor in [0, 1] that clips gradients of the given norm to `max_norm`.

    `norm` is a float32 scalar. If it is inf or NaN, the factor is NaN: a factor of 0 (1 / inf)
    would hide the overflow.

    Raises:
        InputError: `max_norm` is not above 0.

    Source: google-research/bert, optimization.py (`clip_norm=1.0`); Pascanu et al. 2013.
    """
    if not max_norm > 0:
        raise InputError(f"max_norm must be above 0, got {max_norm!r}")
    scale = max_norm / ops.maximum(norm, max_norm)
    return ops.where(ops.isfinite(norm), scale, float("nan"))
