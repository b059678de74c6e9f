"""Computes the losses of the tasks, against labels and against the outputs of a teacher.

`OutputObjective` makes a task's objective of them.

The loss of soft targets is the Kullback-Leibler divergence of the two distributions at a
temperature T, multiplied by T² (Hinton et al. 2015, section 2). Outputs of the teacher that do not
exist, such as those at padding, are NO_OUTPUT. Shapes: B examples, S tokens, C classes or tags.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert.models.encoder import select_inputs
from keras_bert.tasks.settings import Distillation
from keras_bert.training.objective import Batch, Objective

Outputs = Mapping[str, Any]

TEACHER = "teacher_"  # Prefix of the labels that are outputs of the teacher.

NO_OUTPUT = -10_000.0  # Small enough that exp(NO_OUTPUT / T) is 0, and still a float16.

# --- labels ---


def single_label_loss(labels: Any, logits: Any) -> Any:
    """Computes softmax cross-entropy: labels int [B], logits [B, C] -> [B]."""
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def multi_label_loss(labels: Any, logits: Any, positive_weights: Any = 1.0) -> Any:
    """Computes sigmoid cross-entropy, averaged over the classes: labels and logits [B, C] -> [B].

    `labels` is 1 for each label of an example, and 0 otherwise. `positive_weights`, a number or
    [C], is the weight of the labels that are 1.
    """
    # -positive · labels · log(sigmoid(x)) - (1 - labels) · log(1 - sigmoid(x)), without overflow.
    weights = 1.0 + (positive_weights - 1.0) * labels
    softplus = ops.log1p(ops.exp(-ops.abs(logits))) + ops.relu(-logits)
    return ops.mean((1.0 - labels) * logits + weights * softplus, axis=-1)


def regression_loss(targets: Any, logits: Any) -> Any:
    """Computes the squared error: targets [B], logits [B, 1] -> [B]."""
    return ops.square(logits[:, 0] - ops.reshape(targets, [-1]))


CLASSIFICATION_LOSSES = {
    "single_label": single_label_loss,
    "multi_label": multi_label_loss,
    "regression": regression_loss,
    "reranking": multi_label_loss,
}


# --- soft targets ---


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
    "reranking": soft_multi_label_losses,
}


def soft_position_losses(teacher: Any, logits: Any, temperature: float) -> Any:
    """Computes the divergence of two distributions over positions: logits [B, S] -> [B]."""
    logits = ops.where(teacher > NO_OUTPUT / 2, logits, NO_OUTPUT)
    return soft_label_losses(teacher, logits, temperature)


# --- objective ---


class OutputObjective(Objective):
    """An objective whose losses depend only on the outputs of the model, also with a teacher.

    With a teacher, batches contain its outputs, and the losses are "label_loss" and "soft_loss".
    They include their weights, so that the loss is their sum. Subclasses override the methods
    without an implementation; `accuracy` is the name of the share of hits, if it is a metric.
    """

    accuracy: str = ""

    def __init__(self, distillation: Distillation | None = None):
        self.distillation = distillation
        hits = (self.accuracy,) if self.accuracy else ()
        self.metrics = ("loss", *hits)
        if distillation is not None:
            weight = distillation.distillation_weight
            self._shares = {"label_loss": 1.0 - weight, "soft_loss": weight}
            self.losses = dict.fromkeys(self._shares, 0.0)
            self.metrics = (*self.losses, *hits)

    def label_losses(self, outputs: Outputs, batch: Batch) -> tuple[Any, Any]:
        """Returns the losses against the labels, [B] or [B, S], and whether each one is a hit."""
        raise NotImplementedError

    def soft_losses(self, teacher: Outputs, outputs: Outputs, temperature: float) -> Any:
        """Returns the losses of the soft targets, [B] or [B, S]."""
        raise NotImplementedError

    def item_weights(self, batch: Batch) -> Any:
        """Returns the weights of the hits and of `soft_losses`, of the same shape."""
        return batch["example_weights"]

    def loss_weights(self, batch: Batch) -> Any:
        """Returns the weights of the losses against the labels."""
        return self.item_weights(batch)

    def weights(self, batch: Batch) -> dict[str, Any]:
        """Returns {metric: denominator}."""
        loss, items = ops.sum(self.loss_weights(batch)), ops.sum(self.item_weights(batch))
        hits = {self.accuracy: items} if self.accuracy else {}
        if self.distillation is None:
            return {"loss": loss} | hits
        return {"label_loss": loss, "soft_loss": items} | hits

    def sums(self, model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        """Returns {metric: numerator}."""
        outputs = model(select_inputs(batch), training=training)
        losses, is_hit = self.label_losses(outputs, batch)
        loss, weights = ops.sum(self.loss_weights(batch) * losses), self.item_weights(batch)
        hits = {}
        if self.accuracy:
            hits = {self.accuracy: ops.sum(weights * ops.cast(is_hit, "float32"))}
        if self.distillation is None:
            return {"loss": loss} | hits
        teacher = {
            name.removeprefix(TEACHER): values
            for name, values in batch.items()
            if name.startswith(TEACHER)
        }
        soft = self.soft_losses(teacher, outputs, self.distillation.temperature)
        totals = {"label_loss": loss, "soft_loss": ops.sum(weights * soft)}
        return {name: self._shares[name] * totals[name] for name in self.losses} | hits
