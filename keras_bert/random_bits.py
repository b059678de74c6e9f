"""Computes random bits as a pure function of a seed, a site and a position.

A site is the index of a place in the program that draws bits, such as a dropout. The bits do not
depend on the backend, the device or the micro-batch, and can be computed again. They come from a
counter-based hash (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a few 32-bit
integer operations, which XLA fuses with the arithmetic around them.
"""

from typing import Any

from keras import ops


def _int32(bits: int) -> int:
    """Returns the int32 value with these 32 bits, because int32 tensors reject larger integers."""
    return (bits & 0xFFFFFFFF) - ((bits & 0x80000000) << 1)


# Multipliers of a 32-bit finalizer with low bias (Wellons, "hash-prospector"), and 2^32 / φ.
_MULTIPLIER_1 = _int32(0x7FEB352D)
_MULTIPLIER_2 = _int32(0x846CA68B)
_GOLDEN = 0x9E3779B9


def _xor_shift(x: Any, bits: int) -> Any:
    """Returns x ^ (x >>> bits). Int32 shifts copy the sign bit; the copies are masked off."""
    return ops.bitwise_xor(
        x, ops.bitwise_and(ops.bitwise_right_shift(x, bits), (1 << (32 - bits)) - 1)
    )


def mix(x: Any) -> Any:
    """Scrambles int32 values with a bijection: each input bit flips about half the output bits."""
    x = _xor_shift(x, 16) * _MULTIPLIER_1
    x = _xor_shift(x, 15) * _MULTIPLIER_2
    return _xor_shift(x, 16)


def site_key(seed: Any, site: int, offset: Any = None) -> Any:
    """Computes the keys for `random_bits`, int32 [B], from seeds and a site.

    Args:
        seed: int32 [B], the seed of each row; a row is an example, or a training step.
        site: the index of the place in the program that draws the bits; different sites get
            different bits.
        offset: a number to add to `site`, as an int32 tensor; None for 0.
    """
    key = mix(seed + _int32(_GOLDEN)) + _int32(_GOLDEN * (2 * site + 1))
    return mix(key if offset is None else key + offset * _int32(2 * _GOLDEN))


def random_words(key: Any, count: Any) -> Any:
    """Returns 32 random bits for each key and word, int32, in the broadcast shape of the two.

    `key` is int32 from `site_key`, and `count` int32, the index of a word within a row.
    """
    x = ops.bitwise_xor(mix(count + _int32(_GOLDEN)), key) * _MULTIPLIER_1
    return ops.bitwise_xor(x, ops.bitwise_right_shift(x, 15)) * _MULTIPLIER_2


def random_bits(key: Any, size: Any, *, keep_positions: bool = True) -> Any:
    """Returns uniform int16 values [B, size] that depend only on the key and the position.

    Args:
        key: int32 [B], one per row, from `site_key`.
        size: the number of values in a row.
        keep_positions: whether TensorFlow may store the positions as a constant, which is faster if
            many rows share them. Optimizer state is one long row, so the constant would take
            gigabytes. The values are the same in both cases.
    """
    # Each 32-bit word gives two elements, because 16 bits are enough for a dropout rate.
    # Positions are mixed once for all rows, into words so different that the keys of two rows
    # rarely map them to the same word. Only two multiplications per word remain for each row.
    words = (size + 1) // 2
    count = ops.arange(words, dtype="int32") if keep_positions else _count(words, key)
    x = random_words(key[:, None], count[None, :])
    bits = ops.reshape(ops.view(x[:, :, None], "int16"), (-1, 2 * words))
    is_even = isinstance(size, int) and size % 2 == 0
    return bits if is_even else bits[:, :size]


def _count(size: Any, key: Any) -> Any:
    """Returns int32 [0, 1, ..., size - 1], computed from `key` so that it is not a constant."""
    nothing = ops.bitwise_xor(key[:1], key[:1])
    # TensorFlow folds only tensors of up to 10 MB, so the first factor may be a constant.
    rows = ops.arange((size + 1023) // 1024, dtype="int32") * 1024 + nothing
    return ops.reshape(rows[:, None] + ops.arange(1024, dtype="int32"), (-1,))[:size]
