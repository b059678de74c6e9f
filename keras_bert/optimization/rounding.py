"""Rounds float32 to bfloat16, up or down at random so that the mean is kept.

In: a float32 tensor and a key [1] int32. Out: bfloat16 of the same shape.

A moving average in bfloat16, which has 8 bits, cannot be rounded to the nearest: a step of Adam's
second moment moves it by a thousandth, less than half of its last bit, so it would never shrink.
Rounded at random, it moves by a whole bit now and then, and by the right amount on average (Gupta
et al. 2015, "Deep learning with limited numerical precision", section 3). The bits are a function
of the key, so that a continued run, and every device, rounds alike.
"""

import math
from typing import Any

from keras import ops

from keras_bert.common.random_bits import random_bits

_LOW_HALF = 0xFFFF


def round_at_random(x: Any, key: Any) -> Any:
    """Rounds to one of the two neighbours in bfloat16, more often to the nearer one.

    Args:
        x: [...] float32 of a known shape.
        key: [1] int32, from `site_key`.

    Returns:
        [...] bfloat16. What bfloat16 has, inf and NaN too, stays as it is.
    """
    # bfloat16 is the upper half of float32: a random lower half is added, what it carries into
    # the upper one rounds up, and the rest is cut off.
    noise = ops.cast(random_bits(key, math.prod(x.shape), keep_positions=False), "int32")
    noise = ops.reshape(ops.bitwise_and(noise, _LOW_HALF), x.shape)
    bits = ops.bitwise_and(ops.view(x, "int32") + noise, ~_LOW_HALF)
    return ops.cast(ops.view(bits, "float32"), "bfloat16")
