"""The NER task: batches in; sums of the loss and of the hits out.

Softmax cross-entropy over the pieces that carry a tag, divided by their number in the global batch.
"""

import keras
import tensorflow as tf

from keras_bert.tasks.fine_tuning.batches import model_inputs
from keras_bert.training.task import Batch, Task


def ner_task() -> Task:
    """Makes the task.

    Returns:
        The task, for a `BertTokenClassifier` and batches with "tags" [B, S], -1 where a piece
        carries none.
    """

    def tagged(batch: Batch) -> tf.Tensor:
        return tf.cast(batch["tags"] >= 0, tf.float32) * batch["example_weights"][:, tf.newaxis]

    def weights_of(batch: Batch) -> dict[str, tf.Tensor]:
        count = tf.reduce_sum(tagged(batch))
        return {"loss": count, "tag_accuracy": count}

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, tf.Tensor]:
        logits = model(model_inputs(batch), training=training)["logits"]
        tags = tf.maximum(batch["tags"], 0)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tags, logits)
        hits = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == tags, tf.float32)
        weights = tagged(batch)
        return {
            "loss": tf.reduce_sum(weights * losses),
            "tag_accuracy": tf.reduce_sum(weights * hits),
        }

    return Task(
        figures=("loss", "tag_accuracy"),
        losses={"loss": 0.0},
        weights=weights_of,
        sums=sums_of,
    )
