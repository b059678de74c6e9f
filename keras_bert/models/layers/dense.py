"""Defines the dense layers of the transformer, whose bias is added by the next operation.

The element-wise operations after a matrix product run as one chain (chain.py), which includes the
bias. Therefore, other layers call `SplitDense.product_and_bias` instead of the dense layer itself.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bert")
class LazyTruncatedNormal(keras.initializers.Initializer):
    """A truncated normal initializer that draws its seed at the first call.

    The weights of a model then depend only on the order in which its layers are built.
    `keras.initializers.TruncatedNormal` draws its seed in the constructor. `stddev` is the standard
    deviation before the truncation at two standard deviations.
    """

    def __init__(self, stddev: float):
        self.stddev = stddev
        self._initializer: keras.initializers.Initializer | None = None

    def __call__(self, shape: tuple, dtype: Any = None) -> Any:
        """Returns a tensor of random values, the same at each call."""
        if self._initializer is None:
            self._initializer = keras.initializers.TruncatedNormal(stddev=self.stddev)
        return self._initializer(shape, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {"stddev": self.stddev}


@keras.saving.register_keras_serializable(package="keras_bert")
class SplitDense(keras.layers.Dense):
    """A Dense layer that can return its matrix product without the bias; adds it in float32.

    LoRA and quantization work as in `keras.layers.Dense`.
    """

    @classmethod
    def of(cls, units: int, initializer_range: float, name: str, dtype: Any) -> "SplitDense":
        """Creates a layer with a truncated normal kernel; stddev is `initializer_range`."""
        initializer = LazyTruncatedNormal(initializer_range)
        return cls(units, kernel_initializer=initializer, name=name, dtype=dtype)

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a weight; mixed precision does not cast the bias."""
        if kwargs.get("name") == "bias":
            kwargs["autocast"] = False
        return super().add_weight(*args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns activation(inputs · kernel + bias), [..., units] in the compute dtype."""
        x = with_bias(self._product(inputs), self.bias)
        return self.activation(ops.cast(x, self.compute_dtype))

    def quantized_call(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the same as `call`, with the quantized kernel."""
        return ops.cast(super().quantized_call(*args, **kwargs), self.compute_dtype)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Quantizes the kernel; ignores `type_check`, because Keras's check rejects subclasses."""
        super().quantize(mode, type_check=False, config=config)

    def product_and_bias(self, inputs: Any) -> tuple[Any, Any]:
        """Returns the matrix product and the bias, which the caller must add with `with_bias`.

        Does not apply the activation. Must be called within the `call` of a layer with the same
        dtype policy, because Keras casts the kernel to the compute dtype only there.

        Returns:
            The product [..., units] in the compute dtype, and the bias [units]. The bias is None if
            the product already contains it, as in a quantized layer.
        """
        if self.quantization_mode is not None:
            return self(inputs), None
        # TensorFlow sums gradients in the order of their names, so the exact result of training
        # depends on this scope.
        with keras.name_scope(self.name):
            return self._product(inputs), self.bias

    def _product(self, inputs: Any) -> Any:
        *leading, width = ops.shape(inputs)
        # With three dimensions, the product would be computed as a batch of small products.
        product = ops.matmul(ops.reshape(inputs, (-1, width)), self.kernel)
        return ops.reshape(product, (*leading, self.units))


def with_bias(product: Any, bias: Any) -> Any:
    """Returns product + bias in float32; `bias` is None if `product` contains it."""
    x = ops.cast(product, "float32")
    return x if bias is None else x + bias
