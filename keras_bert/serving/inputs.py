"""Checks the shapes and values of a signature's inputs in the graph."""

import tensorflow as tf


def same_shape(**inputs: tf.Tensor) -> list[tf.Tensor]:
    """Returns the inputs; the graph fails with an InvalidArgumentError if their shapes differ.

    Use the results in place of the arguments, because they depend on the check. Without the check,
    TensorFlow would silently broadcast one row against many.
    """
    (name, first), *others = inputs.items()
    shape = tf.shape(first)
    checks = []
    for other, value in others:
        got = tf.shape(value)
        message = f"{other} and {name}: expected equal shapes, got"
        checks.append(tf.debugging.Assert(tf.reduce_all(got == shape), [message, got, shape]))
    with tf.control_dependencies(checks):
        return [tf.identity(value) for value in inputs.values()]


def in_range(size: int, **inputs: tf.Tensor) -> list[tf.Tensor]:
    """Returns the inputs; the graph fails with an InvalidArgumentError if a value is out of range.

    The range is 0 to `size` - 1. Use the results in place of the arguments, because they depend on
    the check. Without it, TensorFlow fails on a CPU with a message that does not name the input,
    and on a GPU it gathers zeros for such ids.
    """
    checks = []
    for name, value in inputs.items():
        # An empty tensor passes: its minimum is the largest integer, its maximum the smallest.
        lowest, highest = tf.reduce_min(value), tf.reduce_max(value)
        message = f"{name}: expected values from 0 to {size - 1}, got"
        wrong = tf.where(lowest < 0, lowest, highest)
        checks.append(tf.debugging.Assert((lowest >= 0) & (highest < size), [message, wrong]))
    with tf.control_dependencies(checks):
        return [tf.identity(value) for value in inputs.values()]
