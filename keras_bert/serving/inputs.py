"""What a signature takes: tensors that belong together, checked before anything is made of them.

TensorFlow would broadcast one row against many, or pair what does not belong together, without a
word.
"""

import tensorflow as tf


def same_shape(**inputs: tf.Tensor) -> list[tf.Tensor]:
    """Refuses inputs of different shapes, in the graph: InvalidArgument.

    Args:
        inputs: by their names in the signature.

    Returns:
        The inputs, to be used instead of the arguments: they wait for the check.
    """
    (name, first), *others = inputs.items()
    shape = tf.shape(first)
    checks = []
    for other, value in others:
        got = tf.shape(value)
        message = f"{other} and {name}: expected one shape, got"
        checks.append(tf.debugging.Assert(tf.reduce_all(got == shape), [message, got, shape]))
    with tf.control_dependencies(checks):
        return [tf.identity(value) for value in inputs.values()]
