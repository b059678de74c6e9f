"""Computes LayerNorm (Ba et al. 2016) in float32 for every compute dtype."""

from typing import Any, NamedTuple

import keras
from keras import ops


class BiasAndNorm(NamedTuple):
    """The vectors [H] that a chain (chain.py) applies after a matrix product.

    `bias` is None if the product contains it; `gamma` and `beta` are the weights of a LayerNorm.
    """

    bias: Any
    gamma: Any
    beta: Any


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Normalizes float32 vectors [..., H] to mean 0 and variance 1, then applies gamma and beta."""
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    return centred * ops.rsqrt(variance + epsilon) * gamma + beta


@keras.saving.register_keras_serializable(package="keras_bert")
class LayerNorm(keras.layers.Layer):
    """Normalizes each vector to mean 0 and variance 1, then applies `gamma` and `beta`.

    The layers of this package do not call this layer. They pass its `gamma`, `beta` and `epsilon`
    to a chain (chain.py), so that a compiler can fuse the normalization with other operations.

    Args:
        epsilon: added to the variance; BERT uses 1e-12.
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: tuple) -> None:
        """Creates gamma [H] and beta [H]."""
        width = (input_shape[-1],)
        self.gamma = self.add_weight(width, initializer="ones", name="gamma", autocast=False)
        self.beta = self.add_weight(width, initializer="zeros", name="beta", autocast=False)

    def call(self, inputs: Any) -> Any:
        """Normalizes vectors [..., H] in float32 and returns them in the compute dtype."""
        x = ops.cast(inputs, "float32")
        return ops.cast(layer_norm(x, self.gamma, self.beta, self.epsilon), self.compute_dtype)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the input."""
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "epsilon": self.epsilon}
