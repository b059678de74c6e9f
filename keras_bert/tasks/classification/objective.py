"""Defines the loss and the accuracy that are computed in the training of a classifier.

single_label   softmax cross-entropy; an example has the class weight of its label
multi_label    mean sigmoid cross-entropy over the classes; a class weight applies to
               the examples that have the label
regression     squared error
"""

import functools
from typing import Any

import numpy as np
from keras import ops

from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.tasks.fine_tuning.output_objective import OutputObjective, Outputs
from keras_bert.tasks.losses import CLASSIFICATION_LOSSES, multi_label_loss
from keras_bert.tasks.soft_losses import SOFT_CLASSIFICATION_LOSSES
from keras_bert.training.objective import Batch, Objective


def classification_objective(
    problem_type: str,
    class_weights: np.ndarray | None = None,
    distillation: Distillation | None = None,
) -> Objective:
    """Creates the objective of a classifier, for batches whose "labels" are as in labels.py.

    `class_weights`, float32 [C], are the weights of the classes in the loss of the labels; None for
    equal weights. `distillation` adds the losses of a teacher; None for none.
    """
    is_single = problem_type == "single_label"
    losses_of = CLASSIFICATION_LOSSES[problem_type]
    if problem_type == "multi_label" and class_weights is not None:
        losses_of = functools.partial(multi_label_loss, positive_weights=class_weights)
    metrics = ("loss", "accuracy") if is_single else ("loss",)

    def loss_weights(batch: Batch) -> Any:
        weights = batch["example_weights"]
        if is_single and class_weights is not None:
            of_class = ops.convert_to_tensor(class_weights)
            weights *= ops.take(of_class, batch["labels"], axis=0)
        return weights

    def weights_of(batch: Batch) -> dict[str, Any]:
        weights = {"loss": ops.sum(loss_weights(batch))}
        if is_single:
            weights["accuracy"] = ops.sum(batch["example_weights"])
        return weights

    def sums_of(outputs: Outputs, batch: Batch) -> dict[str, Any]:
        logits, labels = outputs["logits"], batch["labels"]
        losses = losses_of(labels, logits)
        sums = {"loss": ops.sum(loss_weights(batch) * losses)}
        if is_single:
            hits = ops.cast(ops.argmax(logits, axis=-1) == labels, "float32")
            sums["accuracy"] = ops.sum(batch["example_weights"] * hits)
        return sums

    soft_losses_of = SOFT_CLASSIFICATION_LOSSES[problem_type]

    return OutputObjective(
        metrics=metrics,
        weights=weights_of,
        sums=sums_of,
        soft_losses=lambda teacher, outputs, temperature: soft_losses_of(
            teacher["logits"], outputs["logits"], temperature
        ),
        soft_weights=lambda batch: batch["example_weights"],
    ).objective(distillation)
