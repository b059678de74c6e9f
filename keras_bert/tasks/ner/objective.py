"""What a tagger learns: softmax cross-entropy over the tokens that carry a tag.

The programs' training loop divides sums over all devices by the number of such tokens in the global
batch; Keras' `fit` takes the mean over those of its batch.
"""

from typing import Any

import keras
from keras import ops

from keras_bert.tasks.fine_tuning.batches import model_inputs
from keras_bert.training.objective import Batch, Objective


def tagging_objective() -> Objective:
    """Makes the objective.

    Returns:
        The objective, for a `BertTokenClassifier` and batches with "tags" [B, S], -1 where a token
        carries none.
    """

    def tagged(batch: Batch) -> Any:
        return ops.cast(batch["tags"] >= 0, "float32") * batch["example_weights"][:, None]

    def weights_of(batch: Batch) -> dict[str, Any]:
        count = ops.sum(tagged(batch))
        return {"loss": count, "tag_accuracy": count}

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        logits = model(model_inputs(batch), training=training)["logits"]
        weights = tagged(batch)
        return {
            "loss": ops.sum(weights * _losses(batch["tags"], logits)),
            "tag_accuracy": ops.sum(weights * _hits(batch["tags"], logits)),
        }

    return Objective(
        figures=("loss", "tag_accuracy"),
        losses={"loss": 0.0},
        weights=weights_of,
        sums=sums_of,
    )


def tag_loss(tags: Any, logits: Any) -> Any:
    """Returns the mean loss of the tokens that carry a tag, as a loss of Keras' `fit`.

    Args:
        tags: [B, S], -1 where a token carries none.
        logits: float [B, S, C].
    """
    return _mean(tags, _losses(ops.cast(tags, "int32"), logits))


def tag_accuracy(tags: Any, logits: Any) -> Any:
    """Returns the share of tokens whose tag is predicted, as a metric of Keras' `fit`.

    Args:
        tags: [B, S], -1 where a token carries none.
        logits: float [B, S, C].
    """
    return _mean(tags, _hits(ops.cast(tags, "int32"), logits))


def _losses(tags: Any, logits: Any) -> Any:
    return ops.sparse_categorical_crossentropy(ops.maximum(tags, 0), logits, from_logits=True)


def _hits(tags: Any, logits: Any) -> Any:
    return ops.cast(ops.argmax(logits, axis=-1) == ops.maximum(tags, 0), "float32")


def _mean(tags: Any, values: Any) -> Any:
    weights = ops.cast(tags >= 0, values.dtype)
    return ops.sum(weights * values) / ops.maximum(ops.sum(weights), 1)
