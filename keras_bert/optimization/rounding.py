"""Rounds float32 to bfloat16 stochastically, which preserves the expected value.

A step of Adam changes the second moment by about a thousandth, less than half of the last of
bfloat16's 8 bits. Rounding to nearest would discard the change, so the moment would never become
smaller. Stochastic rounding changes the last bit in some of the steps, which is correct on average
(Gupta et al. 2015, "Deep learning with limited numerical precision", section 3). The random bits
are a function of the key, so all devices and resumed runs round to the same values.
"""

import math
from typing import Any

from keras import ops

from keras_bert.common.random_bits import random_bits

_LOW_HALF = 0xFFFF


def round_stochastically(x: Any, key: Any) -> Any:
    """Rounds each value up or down to a bfloat16 value, so that the expected value is the input.

    Args:
        x: [...] float32 of a static shape.
        key: [1] int32, from `site_key`.

    Returns:
        [...] bfloat16. Values that bfloat16 can represent, including inf and NaN, are unchanged.
    """
    # bfloat16 is the upper half of float32. A random lower half is added, a carry into the upper
    # half rounds up, and the lower half is then set to zero.
    noise = ops.cast(random_bits(key, math.prod(x.shape), keep_positions=False), "int32")
    noise = ops.reshape(ops.bitwise_and(noise, _LOW_HALF), x.shape)
    bits = ops.bitwise_and(ops.view(x, "int32") + noise, ~_LOW_HALF)
    return ops.cast(ops.view(bits, "float32"), "bfloat16")
