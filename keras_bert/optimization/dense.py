"""Converts sparse gradients to dense ones."""

from typing import Any

from keras import ops


def densify(gradient: Any) -> Any:
    """Sums the rows of an IndexedSlices gradient to a dense tensor; returns others unchanged.

    TensorFlow's gradient of `take` on an embedding table [V, ...] is an IndexedSlices with one row
    per token. An optimizer or norm that squares these rows would be wrong for a token that repeats
    in the batch: `(a + b)^2` is not `a^2 + b^2`.
    """
    # Compared by name, because TensorFlow may not be installed. `ops.convert_to_tensor` does not
    # help: in Keras 3.15 it returns an IndexedSlices unchanged.
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    rows = gradient.shape[0] or gradient.dense_shape[0]
    return ops.segment_sum(gradient.values, gradient.indices, num_segments=rows)
