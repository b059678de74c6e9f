"""Memory of TensorFlow's devices: frees variables, and reads the peak of a GPU."""

from collections.abc import Iterable

import keras
import tensorflow as tf


def free(variables: Iterable[keras.Variable]) -> None:
    """Gives back the memory of variables that are not used again.

    TensorFlow keeps each graph that was traced with a custom gradient for good (its gradient is
    registered under a name of its own), and with the graph all variables in it. So each gets an
    empty value.

    Args:
        variables: those of a model or an optimizer; they have no values afterwards.
    """
    for variable in variables:
        for copy in getattr(variable.value, "values", [variable.value]):
            nothing = tf.zeros([0], copy.dtype)
            tf.raw_ops.AssignVariableOp(resource=copy.handle, value=nothing)


def peak_memory() -> int | None:
    """Returns the most bytes that the first GPU has held since the last call.

    Returns:
        The bytes; None where there is no GPU.
    """
    if not tf.config.list_logical_devices("GPU"):
        return None
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    return peak
