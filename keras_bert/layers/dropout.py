"""Dropout as a pure function of (the example's seed, the dropout site, the element's position).

In: activations [B, ...] and `dropout_seed` [B] int32, or None for no dropout. Out: [B, ...].

No state is kept and no generator is drawn from, so a mask does not depend on the replica, the
micro-batch or the place in the batch that an example comes to: two devices equal one, an
accumulated batch equals the big one, and recomputation redraws the same mask. The bits come from
a counter-based hash (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") of a few
32-bit integer operations an element, which XLA fuses into the arithmetic around it. Integers
wrap at 32 bits alike on TensorFlow, JAX and torch, so all of them draw the same mask.
"""

import math
from typing import Any

import keras
from keras import ops


def _int32(bits: int) -> int:
    """Returns the signed number that has these 32 bits, as int32 tensors take no other."""
    return (bits & 0xFFFFFFFF) - ((bits & 0x80000000) << 1)


# Multipliers of a 32-bit finalizer with low bias (Wellons, "hash-prospector"), and 2^32 / φ.
_MULTIPLIER_1 = _int32(0x7FEB352D)
_MULTIPLIER_2 = _int32(0x846CA68B)
_GOLDEN = 0x9E3779B9


def _xor_shift(x: Any, bits: int) -> Any:
    """Returns x ^ (x >>> bits): int32 shifts copy the sign in, so it is masked off."""
    return ops.bitwise_xor(
        x, ops.bitwise_and(ops.bitwise_right_shift(x, bits), (1 << (32 - bits)) - 1)
    )


def mix(x: Any) -> Any:
    """Returns a bijection of int32 under which each input bit flips about half the output bits."""
    x = _xor_shift(x, 16) * _MULTIPLIER_1
    x = _xor_shift(x, 15) * _MULTIPLIER_2
    return _xor_shift(x, 16)


def random_bits(dropout_seed: Any, site: int, size: Any) -> Any:
    """Returns uniform int32 numbers that depend on their seed, site and position alone.

    Args:
        dropout_seed: [B] int32, one an example.
        site: number of the place in the model, so that no two places share a mask.
        size: elements an example.

    Returns:
        [B, size] int32, uniform over all 2^32 values.
    """
    # Two keys an example: with one alone, two examples would hold the same bits in another order.
    key = mix(mix(dropout_seed + _int32(_GOLDEN)) + _int32(_GOLDEN * (2 * site + 1)))
    key_2 = mix(key + _int32(_GOLDEN))
    position = mix(ops.arange(size, dtype="int32") + _int32(_GOLDEN))  # [size]
    x = ops.bitwise_xor(position[None, :], key[:, None]) * _MULTIPLIER_1
    return (_xor_shift(x, 15) + key_2[:, None]) * _MULTIPLIER_2


class Dropout(keras.layers.Layer):
    """Zeroes elements at random by the example's seed and scales the rest up.

    Args:
        rate: probability that an element is zeroed, at least 0 and below 1.
        site: number of this place in the model; no other place may have it.
    """

    def __init__(self, rate: float, site: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.site = site
        self._build_at_init()

    def call(self, inputs: Any, dropout_seed: Any = None) -> Any:
        """Returns `inputs` with elements dropped, or as they are without seeds.

        Args:
            inputs: [B, ...].
            dropout_seed: [B] int32, or None outside training.
        """
        if dropout_seed is None or self.rate == 0.0:
            return inputs
        shape = ops.shape(inputs)
        threshold = round(self.rate * 2**32)
        bits = random_bits(dropout_seed, self.site, math.prod(shape[1:]))
        kept = ops.cast(bits >= _int32(threshold + 2**31), inputs.dtype)
        scale = 1.0 / (1.0 - threshold / 2**32)
        return inputs * ops.reshape(kept * scale, shape)
