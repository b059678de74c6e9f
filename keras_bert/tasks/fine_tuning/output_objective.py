"""Defines objectives of models whose losses depend only on their outputs, also with a teacher."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_bert.models.encoder import select_inputs
from keras_bert.tasks.fine_tuning.distillation import teacher_outputs
from keras_bert.tasks.settings import Distillation
from keras_bert.training.objective import Batch, Objective

Outputs = Mapping[str, Any]


@dataclass(frozen=True)
class OutputObjective:
    """The losses and metrics of a task as functions of the outputs of its model.

    Attributes:
        metrics: the names of the metrics; the first one is "loss".
        weights: a function batch -> {metric: denominator}, as in `Objective`.
        sums: a function (outputs, batch) -> {metric: numerator}.
        soft_losses: a function (the teacher's outputs, outputs, temperature) -> the loss of the
            soft targets, [B] or [B, S].
        soft_weights: a function batch -> their weights, of the same shape.
    """

    metrics: Sequence[str]
    weights: Callable[[Batch], dict[str, Any]]
    sums: Callable[[Outputs, Batch], dict[str, Any]]
    soft_losses: Callable[[Outputs, Outputs, float], Any]
    soft_weights: Callable[[Batch], Any]

    def objective(self, distillation: Distillation | None = None) -> Objective:
        """Creates the objective; with a teacher, batches contain its outputs."""
        if distillation is not None and distillation.is_used:
            return self._distilled(distillation)

        def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
            return self.sums(model(select_inputs(batch), training=training), batch)

        return Objective(self.metrics, {"loss": 0.0}, self.weights, sums_of)

    def _distilled(self, distillation: Distillation) -> Objective:
        """Creates the objective with a teacher.

        Its losses are "label_loss" and "soft_loss", without that of weight 0. They include their
        weights, so that the loss is their sum.
        """
        shares = {
            "label_loss": 1.0 - distillation.distillation_weight,
            "soft_loss": distillation.distillation_weight,
        }
        losses = {name: 0.0 for name, share in shares.items() if share > 0}

        def weights_of(batch: Batch) -> dict[str, Any]:
            weights = self.weights(batch)
            totals = {
                "label_loss": weights.pop("loss"),
                "soft_loss": ops.sum(self.soft_weights(batch)),
            }
            return {name: totals[name] for name in losses} | weights

        def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
            outputs = model(select_inputs(batch), training=training)
            sums = self.sums(outputs, batch)
            soft = self.soft_losses(teacher_outputs(batch), outputs, distillation.temperature)
            totals = {
                "label_loss": sums.pop("loss"),
                "soft_loss": ops.sum(self.soft_weights(batch) * soft),
            }
            return {name: shares[name] * totals[name] for name in losses} | sums

        metrics = (*losses, *(name for name in self.metrics if name != "loss"))
        return Objective(metrics, losses, weights_of, sums_of)
