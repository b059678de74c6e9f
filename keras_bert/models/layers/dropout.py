"""Dropout as a pure function of (the example's seed, the dropout site, the element's position).

A mask does not depend on the replica, the micro-batch or the row of the batch that holds an
example: two devices equal one, an accumulated batch equals the big one, and recomputation draws
the same mask again (common/random_bits.py).
"""

import math
from typing import Any

import keras
from keras import ops

from keras_bert.common.random_bits import random_bits, site_key


def drop(inputs: Any, key: Any, rate: float) -> Any:
    """Zeroes elements at random and scales the rest up.

    Args:
        inputs: [B, ...].
        key: [B] int32 from `site_key`, or None for no dropout.
        rate: probability that an element is zeroed, at least 0 and below 1.

    Returns:
        [B, ...] in the type of the inputs.
    """
    if key is None or rate == 0.0:
        return inputs
    shape = ops.shape(inputs)
    dropped = round(rate * 2**16)  # of the 2^16 values that the bits may have
    bits = random_bits(key, math.prod(shape[1:]))
    kept = ops.cast(bits >= dropped - 2**15, inputs.dtype)
    return inputs * ops.reshape(kept * (1.0 / (1.0 - dropped / 2**16)), shape)


@keras.saving.register_keras_serializable(package="keras_bert")
class Dropout(keras.layers.Layer):
    """Zeroes elements at random by the example's seed and scales the rest up.

    Between matrix products, the chain (chain.py) takes `key` and `rate` and drops elements itself;
    `call` serves the places without a chain.

    Args:
        rate: probability that an element is zeroed, at least 0 and below 1.
        site: number of this place in the model, different for every place.
    """

    def __init__(self, rate: float, site: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.site = site
        self.built = True

    def call(self, inputs: Any, dropout_seed: Any = None) -> Any:
        """Zeroes elements by the seeds, or none without seeds.

        Args:
            inputs: [B, ...].
            dropout_seed: [B] int32, or None outside training.

        Returns:
            [B, ...] in the type of the inputs.
        """
        return drop(inputs, self.key(dropout_seed), self.rate)

    def key(self, dropout_seed: Any) -> Any:
        """Returns the key of each example's mask at this site, for `drop`.

        Args:
            dropout_seed: [B] int32, or None outside training.

        Returns:
            [B] int32, or None without seeds.
        """
        return None if dropout_seed is None else site_key(dropout_seed, self.site)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the input."""
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "rate": self.rate, "site": self.site}
