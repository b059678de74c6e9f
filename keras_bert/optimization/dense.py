"""Converts sparse gradients to dense ones, summing repeated rows.

With TensorFlow, the gradient of `take` on an embedding table is an IndexedSlices with one row per
token that was looked up.
"""

from typing import Any

from keras import ops


def densify(gradient: Any) -> Any:
    """Sums the rows of an IndexedSlices gradient to a dense tensor; returns others unchanged.

    Squaring the separate rows, as an optimizer or a norm does, would be wrong if a token repeats in
    the batch: `(a + b)^2` is not `a^2 + b^2`.

    Args:
        gradient: tensor, IndexedSlices (values [R, ...], indices [R], dense_shape) or None.

    Returns:
        A dense tensor [V, ...]; None for None.
    """
    # Compared by name, because TensorFlow may not be installed. `ops.convert_to_tensor` does not
    # help: in Keras 3.15 it returns an IndexedSlices unchanged.
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    rows = gradient.shape[0] or gradient.dense_shape[0]
    return ops.segment_sum(gradient.values, gradient.indices, num_segments=rows)
