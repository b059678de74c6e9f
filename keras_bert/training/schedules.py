"""Provides BERT's learning-rate schedule: linear warm-up, then linear decay to zero."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_bert")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up `lr * step / warmup`, followed by linear decay `lr * (1 - step / total)`.

    `step` is the number of updates already made, so the first update of a warm-up has rate 0. As in
    Google's code, the decay also counts from step 0, so at the end of the warm-up the rate drops
    from `lr` to `lr * (1 - warmup / total)`. The rate is 0 from step `total` on.

    Args:
        learning_rate: `lr`, the peak; not negative.
        num_train_steps: `total`, the number of updates in the whole run, at least 1.
        num_warmup_steps: `warmup`, the number of updates in the warm-up; 0 for no warm-up.

    Source: google-research/bert, optimization.py.
    """

    def __init__(self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        self.learning_rate = float(learning_rate)
        self.num_train_steps = int(num_train_steps)
        self.num_warmup_steps = int(num_warmup_steps)

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate, a float32 scalar, of the update after `step` updates."""
        # The float64 quotient is rounded once. The remaining steps are an integer, which avoids
        # cancellation near the end of a long run.
        step = ops.cast(step, "int32")
        remaining = ops.maximum(self.num_train_steps - step, 0)
        rate = ops.cast(remaining, "float32") * (self.learning_rate / self.num_train_steps)
        if self.num_warmup_steps:
            rising = ops.cast(step, "float32") * (self.learning_rate / self.num_warmup_steps)
            rate = ops.where(step < self.num_warmup_steps, rising, rate)
        return rate

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            "learning_rate": self.learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
        }
