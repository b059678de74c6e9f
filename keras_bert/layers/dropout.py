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
    """Scrambles int32 numbers: a bijection; each input bit flips about half the output bits.

    Args:
        x: [...] int32.

    Returns:
        [...] int32.
    """
    x = _xor_shift(x, 16) * _MULTIPLIER_1
    x = _xor_shift(x, 15) * _MULTIPLIER_2
    return _xor_shift(x, 16)


def site_key(dropout_seed: Any, site: int) -> Any:
    """Returns what decides each example's mask at one site.

    Args:
        dropout_seed: [B] int32, one an example, or None.
        site: number of the place in the model, so that no two places share a mask.

    Returns:
        [B] int32, or None.
    """
    if dropout_seed is None:
        return None
    return mix(mix(dropout_seed + _int32(_GOLDEN)) + _int32(_GOLDEN * (2 * site + 1)))


def random_bits(key: Any, size: Any) -> Any:
    """Returns uniform int16 numbers that depend on their key and position alone.

    Args:
        key: [B] int32, one an example.
        size: elements an example.

    Returns:
        [B, size] int16, uniform over all 2^16 values.
    """
    # Each word gives two elements, as 16 bits are plenty to compare a rate with. Positions are
    # mixed once for all examples, into words so far apart that two examples' keys hardly ever
    # bring them to the same one; that leaves two multiplications for each example's own word.
    words = (size + 1) // 2
    position = mix(ops.arange(words, dtype="int32") + _int32(_GOLDEN))
    x = ops.bitwise_xor(position[None, :], key[:, None]) * _MULTIPLIER_1
    x = ops.bitwise_xor(x, ops.bitwise_right_shift(x, 15)) * _MULTIPLIER_2
    bits = ops.reshape(ops.view(x[:, :, None], "int16"), (-1, 2 * words))
    is_even = isinstance(size, int) and size % 2 == 0
    return bits if is_even else bits[:, :size]


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


class Dropout(keras.layers.Layer):
    """Zeroes elements at random by the example's seed and scales the rest up.

    Where dropout stands between matrix products, the chain there (chain.py) takes `key` and `rate`
    and does it itself; `call` is for the places that have no chain.

    Args:
        rate: probability that an element is zeroed, at least 0 and below 1.
        site: number of this place in the model; no other place may have it.
    """

    def __init__(self, rate: float, site: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.site = site
        self.built = True

    def call(self, inputs: Any, dropout_seed: Any = None) -> Any:
        """Drops elements, or none without seeds.

        Args:
            inputs: [B, ...].
            dropout_seed: [B] int32, or None outside training.

        Returns:
            [B, ...] in the type of the inputs.
        """
        return drop(inputs, self.key(dropout_seed), self.rate)

    def key(self, dropout_seed: Any) -> Any:
        """Returns the key of each example's mask here, for `drop`.

        Args:
            dropout_seed: [B] int32, or None outside training.

        Returns:
            [B] int32, or None without seeds.
        """
        return site_key(dropout_seed, self.site)
