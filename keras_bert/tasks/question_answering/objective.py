"""Defines the training objective of question answering.

The loss is the mean of two cross-entropies over the positions of a window, for the first and last
token of the answer (Devlin et al. 2019, section 4.2). Padding is excluded, so the loss of a window
does not depend on the other windows of its batch.
"""

from typing import Any

import keras
from keras import ops

from keras_bert.models.bert_network import select_inputs
from keras_bert.tasks.losses import position_loss
from keras_bert.training.objective import Batch, Objective

ENDS = ("start", "end")


def span_objective() -> Objective:
    """Creates the objective for batches with "start_positions" and "end_positions", int32 [B].

    "span_accuracy" is the share of windows in which both positions have the highest logit.
    """

    def weights_of(batch: Batch) -> dict[str, Any]:
        total = ops.sum(batch["example_weights"])
        return {"loss": total, "span_accuracy": total}

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        outputs = model(select_inputs(batch), training=training)
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

    return Objective(
        metrics=("loss", "span_accuracy"),
        losses={"loss": 0.0},
        weights=weights_of,
        sums=sums_of,
    )
