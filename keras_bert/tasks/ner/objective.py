"""Defines the training objective of a tagger: softmax cross-entropy over the labeled tokens."""

from typing import Any

from keras import ops

from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.tasks.fine_tuning.output_objective import OutputObjective, Outputs
from keras_bert.tasks.losses import token_hits, token_losses
from keras_bert.tasks.soft_losses import soft_label_losses
from keras_bert.training.objective import Batch, Objective


def tagging_objective(distillation: Distillation | None = None) -> Objective:
    """Creates the objective for batches with "tags" [B, S], which are -1 for unlabeled tokens.

    `distillation` adds the losses of a teacher; None for none.
    """

    def tagged(batch: Batch) -> Any:
        return ops.cast(batch["tags"] >= 0, "float32") * batch["example_weights"][:, None]

    def weights_of(batch: Batch) -> dict[str, Any]:
        count = ops.sum(tagged(batch))
        return {"loss": count, "tag_accuracy": count}

    def sums_of(outputs: Outputs, batch: Batch) -> dict[str, Any]:
        logits, weights = outputs["logits"], tagged(batch)
        return {
            "loss": ops.sum(weights * token_losses(batch["tags"], logits)),
            "tag_accuracy": ops.sum(weights * token_hits(batch["tags"], logits)),
        }

    return OutputObjective(
        metrics=("loss", "tag_accuracy"),
        weights=weights_of,
        sums=sums_of,
        soft_losses=lambda teacher, outputs, temperature: soft_label_losses(
            teacher["logits"], outputs["logits"], temperature
        ),
        soft_weights=tagged,
    ).objective(distillation)
