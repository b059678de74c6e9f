"""The matrix product of every dense layer: [..., inputs] -> [..., units], without the bias.

The bias is kept here, under a Dense layer's names, but added by the chain that follows the
product (see chain.py), which adds it in float32.
"""

from typing import Any

import keras
from keras import ops


class DenseProduct(keras.layers.Layer):
    """Multiplies by a kernel [inputs, units] and holds the bias [units] to add.

    Args:
        units: width of the result.
        initializer_range: standard deviation of the truncated normal the kernel starts from.
    """

    def __init__(self, units: int, initializer_range: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.units = units
        self.initializer_range = initializer_range

    def build(self, input_shape: tuple) -> None:
        """Makes the kernel and the bias."""
        self.kernel = self.add_weight(
            (input_shape[-1], self.units),
            initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_range),
            name="kernel",
        )
        self.bias = self.add_weight((self.units,), initializer="zeros", name="bias", autocast=False)

    def call(self, inputs: Any) -> Any:
        """Multiplies by the kernel; the bias is left to the chain that follows.

        Args:
            inputs: [..., inputs].

        Returns:
            The product [..., units] in the compute type.
        """
        *leading, width = ops.shape(inputs)
        # Two dimensions: a product of three would make a batch of small ones of it.
        product = ops.matmul(ops.reshape(inputs, (-1, width)), self.kernel)
        return ops.reshape(product, (*leading, self.units))
