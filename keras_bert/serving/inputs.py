"""Checks in the graph that the inputs of a signature have the same shape.

Without the check, TensorFlow would silently broadcast one row against many.
"""

import tensorflow as tf


def same_shape(**inputs: tf.Tensor) -> list[tf.Tensor]:
    """Rejects inputs of different shapes with an InvalidArgumentError, in the graph.

    Returns the inputs with a control dependency on the check. Use them in place of the arguments.
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
