"""Implements the LAMB optimizer, for batches of thousands of sequences."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_bert.optimization.adamw import NO_WEIGHT_DECAY, AdamWeightDecay


@keras.saving.register_keras_serializable(package="keras_bert")
class Lamb(AdamWeightDecay):
    """LAMB: `r = m^ / (sqrt(v^) + epsilon) + weight_decay * w; w -= lr * (|w| / |r|) * r`.

    m^ and v^ are the bias-corrected moments, and |.| is the norm of one whole variable. The ratio
    |w| / |r| adapts the learning rate to each variable, which large batches need. It is 1 if either
    norm is 0.

    The arguments and errors are those of `AdamWeightDecay`, without `bias_correction`, which is
    always on. Variables that match `exclude_from_weight_decay` are neither decayed nor rescaled.

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
