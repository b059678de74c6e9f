"""The SQuAD task: batches in; sums of the loss, and of the spans that are hit, out.

The loss is the mean of two cross-entropies over the places of a window: of the answer's first
piece and of its last (Devlin et al. 2019, section 4.2). Padding is left out of both, so that the
loss of a window does not depend on what it is batched with.
"""

from typing import Any

import keras
from keras import ops

from keras_bert.tasks.fine_tuning.batches import model_inputs
from keras_bert.training.objective import Batch, Objective

ENDS = ("start", "end")


def span_objective() -> Objective:
    """Makes the task.

    Returns:
        The task, for a `BertSpanLabeler` and batches with "start_positions" and "end_positions",
        int32 [B]. Its "span_accuracy" is the share of windows whose two places are both the
        likeliest.
    """

    def weights_of(batch: Batch) -> dict[str, Any]:
        total = ops.sum(batch["example_weights"])
        return {"loss": total, "span_accuracy": total}

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        outputs = model(model_inputs(batch), training=training)
        losses, hits = 0.0, True
        for end in ENDS:
            position = batch[f"{end}_positions"]
            logits = ops.where(batch["input_mask"] == 1, outputs[f"{end}_logits"], -1e9)
            losses += 0.5 * ops.sparse_categorical_crossentropy(position, logits, from_logits=True)
            hits &= ops.argmax(logits, axis=-1) == position
        weights = batch["example_weights"]
        return {
            "loss": ops.sum(weights * losses),
            "span_accuracy": ops.sum(weights * ops.cast(hits, "float32")),
        }

    return Objective(
        figures=("loss", "span_accuracy"),
        losses={"loss": 0.0},
        weights=weights_of,
        sums=sums_of,
    )
