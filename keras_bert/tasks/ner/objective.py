"""Defines the training objective of a tagger: softmax cross-entropy over the labeled tokens."""

from typing import Any

import keras
from keras import ops

from keras_bert.models.bert_network import select_inputs
from keras_bert.tasks.losses import token_hits, token_losses
from keras_bert.training.objective import Batch, Objective


def tagging_objective() -> Objective:
    """Creates the objective for batches with "tags" [B, S], which are -1 for unlabeled tokens."""

    def tagged(batch: Batch) -> Any:
        return ops.cast(batch["tags"] >= 0, "float32") * batch["example_weights"][:, None]

    def weights_of(batch: Batch) -> dict[str, Any]:
        count = ops.sum(tagged(batch))
        return {"loss": count, "tag_accuracy": count}

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        logits = model(select_inputs(batch), training=training)["logits"]
        weights = tagged(batch)
        return {
            "loss": ops.sum(weights * token_losses(batch["tags"], logits)),
            "tag_accuracy": ops.sum(weights * token_hits(batch["tags"], logits)),
        }

    return Objective(
        metrics=("loss", "tag_accuracy"),
        losses={"loss": 0.0},
        weights=weights_of,
        sums=sums_of,
    )
