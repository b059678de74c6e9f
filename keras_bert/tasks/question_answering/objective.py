"""Defines the training objective of question answering.

The loss is the mean of two cross-entropies over the positions of a window, for the first and last
token of the answer (Devlin et al. 2019, section 4.2). Padding is excluded, so the loss of a window
does not depend on the other windows of its batch.
"""

from typing import Any

from keras import ops

from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.tasks.fine_tuning.output_objective import OutputObjective, Outputs
from keras_bert.tasks.losses import position_loss
from keras_bert.tasks.soft_losses import soft_position_losses
from keras_bert.training.objective import Batch, Objective

ENDS = ("start", "end")


def span_objective(distillation: Distillation | None = None) -> Objective:
    """Creates the objective for batches with "start_positions" and "end_positions", int32 [B].

    "span_accuracy" is the share of windows in which both positions have the highest logit.
    `distillation` adds the losses of a teacher; None for none.
    """

    def weights_of(batch: Batch) -> dict[str, Any]:
        total = ops.sum(batch["example_weights"])
        return {"loss": total, "span_accuracy": total}

    def sums_of(outputs: Outputs, batch: Batch) -> dict[str, Any]:
        losses, hits = 0.0, True
        for end in ENDS:
            position = batch[f"{end}_positions"]
            loss, hit = position_loss(position, batch["input_mask"] == 1, outputs[f"{end}_logits"])
            losses += 0.5 * loss
            hits &= hit
        weights = batch["example_weights"]
        return {
            "loss": ops.sum(weights * losses),
            "span_accuracy": ops.sum(weights * ops.cast(hits, "float32")),
        }

    def soft_losses(teacher: Outputs, outputs: Outputs, temperature: float) -> Any:
        names = [f"{end}_logits" for end in ENDS]
        return sum(
            0.5 * soft_position_losses(teacher[name], outputs[name], temperature) for name in names
        )

    return OutputObjective(
        metrics=("loss", "span_accuracy"),
        weights=weights_of,
        sums=sums_of,
        soft_losses=soft_losses,
        soft_weights=lambda batch: batch["example_weights"],
    ).objective(distillation)
