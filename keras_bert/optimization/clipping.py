"""The global norm of gradients, and the factor that clips it to `max_norm`.

The gradients are those of the whole global batch, after accumulation and all-reduce. The factor is
multiplied in where the weights are updated: the clipped gradients then never exist in memory.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_bert.common.errors import InputError
from keras_bert.optimization.dense import densify


def global_norm(gradients: Sequence[Any]) -> Any:
    """The Euclidean norm of all gradients taken as one vector.

    Args:
        gradients: dense tensors or IndexedSlices; None entries count nothing.

    Returns:
        A float32 scalar.
    """
    dense = [ops.cast(densify(g), "float32") for g in gradients if g is not None]
    return ops.sqrt(sum(ops.sum(ops.square(g)) for g in dense))


def clip_scale(norm: Any, max_norm: float = 1.0) -> Any:
    """The factor that brings gradients of this norm down to `max_norm`; 1 where they are below.

    A norm that is inf or NaN gives NaN, so that every gradient becomes NaN: an overflow that
    passed for an ordinary step (a scale of 1 / inf = 0) would be worse than one that shows.

    Args:
        norm: float32 scalar.
        max_norm: the largest norm let through, above 0; BERT uses 1.0.

    Returns:
        A float32 scalar in [0, 1], or NaN.

    Raises:
        InputError: max_norm is not above 0.

    Source: Google's BERT [optimization], `clip_norm=1.0`; Pascanu et al. 2013.
    """
    if not max_norm > 0:
        raise InputError(f"max_norm must be above 0, got {max_norm!r}")
    scale = max_norm / ops.maximum(norm, max_norm)
    return ops.where(ops.isfinite(norm), scale, float("nan"))
