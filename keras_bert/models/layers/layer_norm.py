"""LayerNorm (Ba et al. 2016), in float32 whatever the compute type. In and out: [..., H]."""

from typing import Any

import keras
from keras import ops


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Scales each vector to mean 0 and variance 1, then applies gamma and beta.

    Args:
        x: [..., H] float32.
        gamma: [H] float32.
        beta: [H] float32.
        epsilon: added to the variance.

    Returns:
        [..., H] float32. Source: Ba et al. 2016.
    """
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    return centred * ops.rsqrt(variance + epsilon) * gamma + beta


class LayerNorm(keras.layers.Layer):
    """Scales each vector to mean 0 and variance 1, then applies `gamma` and `beta`.

    Where it follows a matrix product, the chain there (chain.py) takes `gamma`, `beta` and
    `epsilon` and does it itself; `call` is for the places that have no chain.

    Args:
        epsilon: added to the variance; BERT's is 1e-12.
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: tuple) -> None:
        """Makes gamma [H] and beta [H]."""
        width = (input_shape[-1],)
        self.gamma = self.add_weight(width, initializer="ones", name="gamma", autocast=False)
        self.beta = self.add_weight(width, initializer="zeros", name="beta", autocast=False)

    def call(self, inputs: Any) -> Any:
        """Normalises in float32.

        Args:
            inputs: [..., H].

        Returns:
            [..., H] in the compute type.
        """
        x = ops.cast(inputs, "float32")
        return ops.cast(layer_norm(x, self.gamma, self.beta, self.epsilon), self.compute_dtype)
