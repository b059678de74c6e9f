"""Random bits as a pure function of (seed, site, position).

No state is kept and no generator is drawn from, so the bits do not depend on the device, the
micro-batch or the place in a batch, and drawing them again gives the same ones. They come from a
counter-based hash (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") of a few
32-bit integer operations an element, which XLA fuses into the arithmetic around it. Integers wrap
at 32 bits alike on TensorFlow, JAX and torch, so all of them draw the same. Dropout (layers/) and
the rounding of optimizer state (optimization/) use it.
"""

from typing import Any

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


def site_key(seed: Any, site: int) -> Any:
    """Returns what decides each row's bits at one site.

    Args:
        seed: [B] int32, one a row: an example, or a step.
        site: number of the place where bits are drawn, so that no two places share them.

    Returns:
        [B] int32.
    """
    return mix(mix(seed + _int32(_GOLDEN)) + _int32(_GOLDEN * (2 * site + 1)))


def random_bits(key: Any, size: Any, *, keep_positions: bool = True) -> Any:
    """Returns uniform int16 numbers that depend on their key and position alone.

    Args:
        key: [B] int32, one a row, from `site_key`.
        size: elements a row.
        keep_positions: let TensorFlow keep the positions in the program, as constants: faster where
            rows share them, but for an optimizer's state, which has no rows, gigabytes.

    Returns:
        [B, size] int16, uniform over all 2^16 values; the same either way.
    """
    # Each word gives two elements, as 16 bits are plenty to compare a rate with. Positions are
    # mixed once for all rows, into words so far apart that two rows' keys hardly ever
    # bring them to the same one; that leaves two multiplications for each row's own word.
    words = (size + 1) // 2
    count = ops.arange(words, dtype="int32") if keep_positions else _count(words, key)
    position = mix(count + _int32(_GOLDEN))
    x = ops.bitwise_xor(position[None, :], key[:, None]) * _MULTIPLIER_1
    x = ops.bitwise_xor(x, ops.bitwise_right_shift(x, 15)) * _MULTIPLIER_2
    bits = ops.reshape(ops.view(x[:, :, None], "int16"), (-1, 2 * words))
    is_even = isinstance(size, int) and size % 2 == 0
    return bits if is_even else bits[:, :size]


def _count(size: Any, key: Any) -> Any:
    """Returns 0, 1, ... size - 1 as no constant: TensorFlow makes those of up to 10 MB itself."""
    nothing = ops.bitwise_xor(key[:1], key[:1])
    rows = ops.arange((size + 1023) // 1024, dtype="int32") * 1024 + nothing
    return ops.reshape(rows[:, None] + ops.arange(1024, dtype="int32"), (-1,))[:size]
