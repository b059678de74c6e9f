"""Converts gradients of gathered rows to dense gradients; repeated rows are summed.

In: a gradient of any backend, possibly TensorFlow's IndexedSlices (what `take` on an embedding
table gives back: one row a looked-up token). Out: a dense tensor of the variable's shape.
"""

from typing import Any

from keras import ops


def densify(gradient: Any) -> Any:
    """Sums the rows of an IndexedSlices gradient into a dense one; leaves the rest as it is.

    An optimizer or a norm that squares the raw rows is wrong whenever a token repeats in the
    batch: `(a + b)^2` is not `a^2 + b^2`.

    Args:
        gradient: tensor, IndexedSlices (values [R, ...], indices [R], dense_shape) or None.

    Returns:
        A dense tensor [V, ...], or None for None.
    """
    # Told by its name, not by its class: TensorFlow may be absent. `ops.convert_to_tensor` hands
    # IndexedSlices back unchanged in Keras 3.15.
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    rows = gradient.shape[0] or gradient.dense_shape[0]
    return ops.segment_sum(gradient.values, gradient.indices, num_segments=rows)
