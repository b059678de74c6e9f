"""Computes the losses of a student model against the outputs of its teacher (distillation).

The loss of soft targets is the Kullback-Leibler divergence of the two distributions at a
temperature T, multiplied by T² (Hinton et al. 2015, section 2). Outputs of the teacher that do not
exist, such as those at padding, are NO_OUTPUT. This module imports only Keras. Shapes: B examples,
S tokens, C classes or tags.
"""

from typing import Any

import keras
from keras import ops

NO_OUTPUT = -10_000.0  # Small enough that exp(NO_OUTPUT / T) is 0, and still a float16.
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 50.0


def is_given(teacher: Any) -> Any:
    """Returns 1.0 where the teacher has an output, and 0.0 elsewhere: [...] -> [...]."""
    return ops.cast(teacher > NO_OUTPUT / 2, "float32")


def soft_label_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the divergence of two distributions over classes: logits [..., C] -> [...]."""
    expected = ops.log_softmax(ops.cast(teacher, "float32") / temperature)
    actual = ops.log_softmax(logits / temperature)
    return temperature**2 * ops.sum(ops.exp(expected) * (expected - actual), axis=-1)


def soft_multi_label_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the divergence for independent classes, averaged over them: [B, C] -> [B]."""
    teacher, logits = ops.cast(teacher, "float32") / temperature, logits / temperature
    share = ops.sigmoid(teacher)
    losses = share * (ops.log_sigmoid(teacher) - ops.log_sigmoid(logits))
    losses += (1.0 - share) * (ops.log_sigmoid(-teacher) - ops.log_sigmoid(-logits))
    return temperature**2 * ops.mean(losses, axis=-1)


def soft_score_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the squared difference of two scores: [B, 1] -> [B]; they have no temperature."""
    return ops.square(logits[:, 0] - ops.cast(teacher, "float32")[:, 0])


SOFT_CLASSIFICATION_LOSSES = {
    "single_label": soft_label_losses,
    "multi_label": soft_multi_label_losses,
    "regression": soft_score_losses,
}


def soft_position_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the divergence of two distributions over positions: logits [B, S] -> [B]."""
    logits = ops.where(teacher > NO_OUTPUT / 2, logits, NO_OUTPUT)
    return soft_label_losses(teacher, logits, temperature)


def mean_of_given(teacher: Any, losses: Any) -> Any:
    """Averages losses [...] over the places where the teacher [..., K] has an output."""
    weights = is_given(teacher[..., 0])
    return ops.sum(weights * losses) / ops.maximum(ops.sum(weights), 1.0)


@keras.saving.register_keras_serializable("keras_bert")
class SoftLoss(keras.losses.Loss):
    """A loss of soft targets for `keras.Model.fit`: the mean over the outputs of the teacher.

    Args:
        kind: `single_label`, `multi_label`, `regression`, `tags` or `positions`.
        temperature: the temperature of the two distributions.
    """

    def __init__(self, kind: str, temperature: float, name: str = "soft_loss", **kwargs: Any):
        super().__init__(name=name, reduction=None, **kwargs)
        self.kind = kind
        self.temperature = temperature

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss, a scalar; `y_true` are the outputs of the teacher."""
        if self.kind == "positions":  # Half of the loss each, for the start and for the end.
            return 0.5 * ops.mean(soft_position_losses(y_true, y_pred, self.temperature))
        if self.kind == "tags":
            return mean_of_given(y_true, soft_label_losses(y_true, y_pred, self.temperature))
        losses_of = SOFT_CLASSIFICATION_LOSSES[self.kind]
        return ops.mean(losses_of(y_true, y_pred, self.temperature))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {"kind": self.kind, "temperature": self.temperature, "name": self.name}
