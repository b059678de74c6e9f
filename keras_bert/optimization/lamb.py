"""The LAMB optimizer, for batches of thousands of sequences.

At such sizes a single learning rate for all variables no longer works, so LAMB scales Adam's update
of each variable to the norm of the variable.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_bert.optimization.adamw import NO_WEIGHT_DECAY, AdamWeightDecay


@keras.saving.register_keras_serializable(package="keras_bert")
class Lamb(AdamWeightDecay):
    """LAMB: `r = m^ / (sqrt(v^) + epsilon) + weight_decay * w; w -= lr * (|w| / |r|) * r`.

    m^ and v^ are the bias-corrected moments, and |.| is the norm of one whole variable. The ratio
    is 1 if either norm is 0, and for all variables excluded from weight decay.

    Args:
        learning_rate: float or `keras.optimizers.schedules.LearningRateSchedule`.
        weight_decay: factor on the weights in the update.
        beta_1: decay of the first moment, in [0, 1).
        beta_2: decay of the second moment, in [0, 1).
        epsilon: added to the square root of the second moment.
        exclude_from_weight_decay: regular expressions; variables whose path contains a match are
            neither decayed nor rescaled.
        learning_rate_multipliers: (regular expression, factor) pairs, as in AdamWeightDecay.
        state_dtype: dtype of the moments, as in AdamWeightDecay.
        name: the optimizer's name.
        **kwargs: arguments of every Keras optimizer (clipping, averages).

    Raises:
        InputError: if a value is out of range or a regular expression is invalid.

    Source: You et al. 2020, algorithm 2.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Sequence[str] = NO_WEIGHT_DECAY,
        learning_rate_multipliers: Sequence[tuple[str, float]] = (),
        state_dtype: str = "float32",
        name: str = "lamb",
        **kwargs: Any,
    ):
        super().__init__(
            learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            bias_correction=True,
            exclude_from_weight_decay=exclude_from_weight_decay,
            learning_rate_multipliers=learning_rate_multipliers,
            state_dtype=state_dtype,
            name=name,
            **kwargs,
        )

    def _adapt(self, update: Any, variable: Any) -> Any:
        """Scales the update to the norm of the variable."""
        size = ops.norm(variable)
        length = ops.norm(update)
        known = ops.logical_and(size > 0, length > 0)
        # The inner `where` prevents a 0 / 0 in the branch that is not selected.
        return update * ops.where(known, size / ops.where(known, length, 1.0), 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        config = super().get_config()
        del config["bias_correction"]  # always on
        return config
