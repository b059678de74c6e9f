"""Applies dropout as a pure function of the example's seed, the dropout site and the position.

A dropout site is one dropout layer of the model; its number is unique within the model. The mask of
an example does not depend on the device, the micro-batch or the row that contains it. Results are
therefore the same for any number of devices and micro-batches, and recomputation generates the same
mask again (common/random_bits.py).
"""

import math
from typing import Any

import keras
from keras import ops

from keras_bert.common.random_bits import random_bits, site_key


def drop(inputs: Any, key: Any, rate: float) -> Any:
    """Sets random elements of `inputs` [B, ...] to zero and scales up the others.

    `key` is [B] int32 from `site_key`, or None for no dropout. `rate` is the probability that an
    element becomes zero, in [0, 1).
    """
    if key is None or rate == 0.0:
        return inputs
    shape = ops.shape(inputs)
    dropped = round(rate * 2**16)  # how many of the 2^16 values of `bits` drop an element
    bits = random_bits(key, math.prod(shape[1:]))
    kept = ops.cast(bits >= dropped - 2**15, inputs.dtype)
    return inputs * ops.reshape(kept * (1.0 / (1.0 - dropped / 2**16)), shape)


@keras.saving.register_keras_serializable(package="keras_bert")
class Dropout(keras.layers.Layer):
    """Dropout with a separate seed for each example.

    Layers that apply dropout in a chain (chain.py) do not call this layer. They pass its `rate` and
    the result of `key` to the chain, so that a compiler can fuse dropout with other operations.

    Args:
        rate: the dropout rate, in [0, 1).
        site: the number of the dropout site, unique within the model.
    """

    def __init__(self, rate: float, site: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.site = site
        self.built = True

    def call(self, inputs: Any, dropout_seed: Any = None) -> Any:
        """Applies dropout to inputs [B, ...] with seeds [B] int32; None disables dropout."""
        return drop(inputs, self.key(dropout_seed), self.rate)

    def key(self, dropout_seed: Any) -> Any:
        """Returns the key of each example's mask, [B] int32, for `drop`; None without seeds."""
        return None if dropout_seed is None else site_key(dropout_seed, self.site)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the input."""
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "rate": self.rate, "site": self.site}
