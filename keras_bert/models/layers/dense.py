"""The dense layers of the transformer: `keras.layers.Dense`, split where a chain adds the bias.

The arithmetic after a matrix product runs as one chain (chain.py), which also adds the bias. The
layers of this package therefore call `product_and_bias`; `layer(x)` is the whole Dense.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bert")
class LazyTruncatedNormal(keras.initializers.Initializer):
    """A truncated normal that draws its seed at the first call, when a layer makes its kernel.

    `keras.initializers.TruncatedNormal` draws the seed when it is constructed. Drawn at build, the
    kernels of a model depend on the order of its layers alone.

    Args:
        stddev: standard deviation before the truncation at two of them.
    """

    def __init__(self, stddev: float):
        self.stddev = stddev
        self._initializer: keras.initializers.Initializer | None = None

    def __call__(self, shape: tuple, dtype: Any = None) -> Any:
        """Returns a tensor of random values, the same ones at each call."""
        if self._initializer is None:
            self._initializer = keras.initializers.TruncatedNormal(stddev=self.stddev)
        return self._initializer(shape, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {"stddev": self.stddev}


@keras.saving.register_keras_serializable(package="keras_bert")
class SplitDense(keras.layers.Dense):
    """A Dense whose product and bias can be had apart; the bias is added in float32.

    LoRA and quantization work as in `keras.layers.Dense`.
    """

    @classmethod
    def of(cls, units: int, initializer_range: float, name: str, dtype: Any) -> "SplitDense":
        """Makes a layer whose kernel starts as a truncated normal.

        Args:
            units: width of the output.
            initializer_range: standard deviation of the truncated normal.
            name: the layer's name.
            dtype: its dtype policy.
        """
        initializer = LazyTruncatedNormal(initializer_range)
        return cls(units, kernel_initializer=initializer, name=name, dtype=dtype)

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a weight as every layer does; mixed precision does not cast the bias."""
        if kwargs.get("name") == "bias":
            kwargs["autocast"] = False
        return super().add_weight(*args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns activation(inputs · kernel + bias).

        Args:
            inputs: [..., inputs].
            training: unused; of the Dense interface.

        Returns:
            [..., units] in the compute type.
        """
        x = with_bias(self._product(inputs), self.bias)
        return self.activation(ops.cast(x, self.compute_dtype))

    def quantized_call(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what `call` does, with the quantized kernel."""
        return ops.cast(super().quantized_call(*args, **kwargs), self.compute_dtype)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Quantizes the kernel; see `keras.layers.Dense.quantize`.

        Args:
            mode: such as `int8`.
            type_check: unused; Keras' own check rejects subclasses of Dense.
            config: a quantization config.
        """
        super().quantize(mode, type_check=False, config=config)

    def product_and_bias(self, inputs: Any) -> tuple[Any, Any]:
        """Returns the matrix product and the bias that the caller must add with `with_bias`.

        Call it within the `call` of a layer of the same dtype policy, which casts the kernel. The
        layer's activation is not applied.

        Args:
            inputs: [..., inputs].

        Returns:
            The product [..., units] in the compute type, and the bias [units] or None: a quantized
            layer has added it already.
        """
        if self.quantization_mode is not None:
            return self(inputs), None
        # TensorFlow sorts the terms of a sum of gradients by their names, so the bits of training
        # depend on this scope.
        with keras.name_scope(self.name):
            return self._product(inputs), self.bias

    def _product(self, inputs: Any) -> Any:
        *leading, width = ops.shape(inputs)
        # Two dimensions: with three, the product would be computed as a batch of small ones.
        product = ops.matmul(ops.reshape(inputs, (-1, width)), self.kernel)
        return ops.reshape(product, (*leading, self.units))


def with_bias(product: Any, bias: Any) -> Any:
    """Returns product + bias in float32.

    Args:
        product: [..., units].
        bias: [units], or None where it has been added.
    """
    x = ops.cast(product, "float32")
    return x if bias is None else x + bias
