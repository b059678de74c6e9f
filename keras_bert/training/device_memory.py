"""Frees the memory of TensorFlow variables, and measures the peak memory of a GPU."""

from collections.abc import Iterable

import keras
import tensorflow as tf


def free(variables: Iterable[keras.Variable]) -> None:
    """Frees the memory of variables that are not used again.

    TensorFlow never releases a graph that was traced with a custom gradient, nor the variables that
    it references. Assigning an empty value to a variable frees its memory nevertheless.
    """
    for variable in variables:
        for copy in getattr(variable.value, "values", [variable.value]):
            nothing = tf.zeros([0], copy.dtype)
            tf.raw_ops.AssignVariableOp(resource=copy.handle, value=nothing)


def peak_memory() -> int | None:
    """Returns the peak memory in bytes of the first GPU since the last call; None without a GPU."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    return peak
