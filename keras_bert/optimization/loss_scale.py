"""Scales the loss of float16 models dynamically.

Many gradients are below 6e-8, the smallest positive float16 number. The loss is therefore
multiplied by a large power of two before the backward pass, and the gradients are divided by it
afterwards. If the scale is so large that a gradient overflows, the step is skipped. All devices
check the sum of their gradients, so they make the same decision.
"""

from typing import Any

import keras
from keras import ops

# A larger scale has no benefit: float16 itself spans 40 powers of two.
_LARGEST = 2.0**24


class LossScale:
    """A scale that doubles after many steps with finite gradients, and halves after each overflow.

    Its variable `scale`, a float32 scalar, is the factor of the loss.

    Args:
        optimizer: creates the two variables of this object, and saves them with its own state.
        initial: the initial scale, a power of two.
        growth_steps: the number of consecutive finite steps after which the scale doubles.

    Source: Micikevicius et al. 2018, section 3.2.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        initial: float = 2.0**15,
        growth_steps: int = 2000,
    ):
        self.growth_steps = growth_steps
        self.scale = optimizer.add_variable(
            (), keras.initializers.Constant(initial), dtype="float32", name="loss_scale"
        )
        self._good_steps = optimizer.add_variable((), dtype="int32", name="good_steps")

    def update(self, is_finite: Any) -> None:
        """Updates the scale after a step.

        `is_finite`, a bool scalar, is whether all gradients of the global batch were finite.
        """
        good_steps = ops.where(is_finite, self._good_steps + 1, 0)
        grows = good_steps >= self.growth_steps
        scale = ops.convert_to_tensor(self.scale)
        grown = ops.where(grows, ops.minimum(scale * 2.0, _LARGEST), scale)
        self.scale.assign(ops.where(is_finite, grown, scale * 0.5))
        self._good_steps.assign(ops.where(grows, 0, good_steps))
