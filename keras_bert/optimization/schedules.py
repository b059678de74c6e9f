"""The learning-rate schedule: linear warm-up, then linear decay to zero.

In: the number of updates already made, a scalar integer. Out: a float32 scalar.
"""

from typing import Any

import keras
from keras import ops

from keras_bert.common.errors import InputError


@keras.saving.register_keras_serializable(package="keras_bert")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """`lr * step / warmup` below the warm-up, then `lr * (1 - step / total)`.

    `step` counts the updates already made, as Google's global_step does: the first update of a
    run with a warm-up has learning rate 0 (it still fills the moments), the last has
    `lr / num_train_steps`. The decay counts from step 0, not from the end of the warm-up, so the
    rate drops from `lr` to `lr * (1 - warmup / total)` where the two meet. Beyond
    `num_train_steps` it is 0.

    Args:
        learning_rate: the peak, not negative.
        num_train_steps: updates in the whole run, at least 1.
        num_warmup_steps: updates of warm-up; 0 for none.

    Raises:
        InputError: a value out of range.

    Source: Google's BERT [optimization].
    """

    def __init__(self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        if not learning_rate >= 0:
            raise InputError(f"learning_rate must not be negative, got {learning_rate!r}")
        if num_train_steps < 1:
            raise InputError(f"num_train_steps must be at least 1, got {num_train_steps!r}")
        if num_warmup_steps < 0:
            raise InputError(f"num_warmup_steps must not be negative, got {num_warmup_steps!r}")
        self.learning_rate = float(learning_rate)
        self.num_train_steps = int(num_train_steps)
        self.num_warmup_steps = int(num_warmup_steps)

    def __call__(self, step: Any) -> Any:
        """The learning rate of the update that follows `step` earlier ones.

        Args:
            step: scalar integer, tensor or variable.

        Returns:
            A float32 scalar.
        """
        # The float64 quotient is rounded once; the steps left are counted in whole numbers, so
        # that nothing cancels near the end of a long run.
        step = ops.cast(step, "int32")
        left = ops.maximum(self.num_train_steps - step, 0)
        rate = ops.cast(left, "float32") * (self.learning_rate / self.num_train_steps)
        if self.num_warmup_steps:
            rising = ops.cast(step, "float32") * (self.learning_rate / self.num_warmup_steps)
            rate = ops.where(step < self.num_warmup_steps, rising, rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "learning_rate": self.learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
        }
