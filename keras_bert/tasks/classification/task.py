"""The classification task: batches in; sums of the loss, and of the hits, out.

    single_label   softmax cross-entropy; class weights weigh an example by its label's class
    multi_label    sigmoid cross-entropy, the mean over the classes; class weights weigh the
                   examples that have the label
    regression     squared error

Each is divided by the weights of the batch's examples, over all devices.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_bert.tasks.fine_tuning.batches import model_inputs
from keras_bert.training.task import Batch, Task


def classification_task(problem_type: str, class_weights: np.ndarray | None = None) -> Task:
    """Makes the task.

    Args:
        problem_type: single_label, multi_label or regression.
        class_weights: float32 [C], or None.

    Returns:
        The task, for a `BertClassifier` and batches with "labels".
    """
    is_single = problem_type == "single_label"
    figures = ("loss", "accuracy") if is_single else ("loss",)

    def loss_weights(batch: Batch) -> tf.Tensor:
        weights = batch["example_weights"]
        if is_single and class_weights is not None:
            weights *= tf.gather(tf.constant(class_weights), batch["labels"])
        return weights

    def weights_of(batch: Batch) -> dict[str, tf.Tensor]:
        weights = {"loss": tf.reduce_sum(loss_weights(batch))}
        if is_single:
            weights["accuracy"] = tf.reduce_sum(batch["example_weights"])
        return weights

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, tf.Tensor]:
        logits = model(model_inputs(batch), training=training)["logits"]
        labels = batch["labels"]
        losses = _losses(problem_type, logits, labels, class_weights)
        sums = {"loss": tf.reduce_sum(loss_weights(batch) * losses)}
        if is_single:
            hits = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, tf.float32)
            sums["accuracy"] = tf.reduce_sum(batch["example_weights"] * hits)
        return sums

    return Task(figures=figures, losses={"loss": 0.0}, weights=weights_of, sums=sums_of)


def _losses(
    problem_type: str, logits: tf.Tensor, labels: tf.Tensor, class_weights: np.ndarray | None
) -> tf.Tensor:
    """Returns the loss of each example, float32 [B], for logits [B, C]."""
    if problem_type == "single_label":
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if problem_type == "regression":
        return tf.square(logits[:, 0] - labels)
    positive = 1.0 if class_weights is None else tf.constant(class_weights)
    by_class = tf.nn.weighted_cross_entropy_with_logits(labels, logits, positive)
    return tf.reduce_mean(by_class, axis=-1)
