"""Stochastic rounding from float32 to bfloat16, which preserves the expected value.

A moving average in bfloat16, which has 8 bits of precision, cannot use round-to-nearest. A step of
Adam changes its second moment by about a thousandth, which is less than half of the last bit, so
the moment would never shrink. With stochastic rounding it changes by a whole bit now and then, and
by the right amount on average (Gupta et al. 2015, "Deep learning with limited numerical precision",
section 3). The random bits are a function of the key, so a resumed run and every device round
alike.
"""

import math
from typing import Any

from keras import ops

from keras_bert.common.random_bits import random_bits

_LOW_HALF = 0xFFFF


def round_stochastically(x: Any, key: Any) -> Any:
    """Rounds to one of the two adjacent bfloat16 values, with the expected value of the input.

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
