"""Dynamic loss scaling for float16.

float16 holds nothing below 6e-8, where many gradients lie. The loss is multiplied by a large power
of two before the backward pass, and the gradients divided by it afterwards. A scale that is too
large shows as a gradient that is not finite: that step is skipped.

Whoever computes the gradients asks `scale`, sums them over all devices, looks once whether the sum
is finite, so that all devices decide alike, and tells `update`.
"""

from typing import Any

import keras
from keras import ops

# Beyond it nothing is gained: float16 itself spans 40 powers of two.
_LARGEST = 2.0**24


class LossScale:
    """Doubles after many good steps in a row, halves at each bad one.

    Its two variables are the optimizer's, so that they are saved and restored with its state.

    Args:
        optimizer: gets the variables; it may be built or not.
        initial: the first scale, a power of two.
        growth_steps: good steps in a row after which the scale doubles.

    Attributes:
        scale: float32 scalar variable, the factor of the loss.

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
        """Takes note of a step.

        Args:
            is_finite: boolean scalar, whether the gradient of the global batch was finite.
        """
        good_steps = ops.where(is_finite, self._good_steps + 1, 0)
        grows = good_steps >= self.growth_steps
        scale = ops.convert_to_tensor(self.scale)
        grown = ops.where(grows, ops.minimum(scale * 2.0, _LARGEST), scale)
        self.scale.assign(ops.where(is_finite, grown, scale * 0.5))
        self._good_steps.assign(ops.where(grows, 0, good_steps))
