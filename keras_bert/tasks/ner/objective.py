"""The NER task: batches in; sums of the loss and of the hits out.

Softmax cross-entropy over the pieces that carry a tag, divided by their number in the global batch.
"""

from typing import Any

import keras
from keras import ops

from keras_bert.tasks.fine_tuning.batches import model_inputs
from keras_bert.training.objective import Batch, Objective


def tagging_objective() -> Objective:
    """Makes the task.

    Returns:
        The task, for a `BertTokenClassifier` and batches with "tags" [B, S], -1 where a piece
        carries none.
    """

    def tagged(batch: Batch) -> Any:
        return ops.cast(batch["tags"] >= 0, "float32") * batch["example_weights"][:, None]

    def weights_of(batch: Batch) -> dict[str, Any]:
        count = ops.sum(tagged(batch))
        return {"loss": count, "tag_accuracy": count}

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        logits = model(model_inputs(batch), training=training)["logits"]
        tags = ops.maximum(batch["tags"], 0)
        losses = ops.sparse_categorical_crossentropy(tags, logits, from_logits=True)
        hits = ops.cast(ops.argmax(logits, axis=-1) == tags, "float32")
        weights = tagged(batch)
        return {
            "loss": ops.sum(weights * losses),
            "tag_accuracy": ops.sum(weights * hits),
        }

    return Objective(
        figures=("loss", "tag_accuracy"),
        losses={"loss": 0.0},
        weights=weights_of,
        sums=sums_of,
    )
