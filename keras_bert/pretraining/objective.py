"""Defines the pre-training objectives: masked tokens, next sentences, and next tokens.

    loss = sum(weight * nll) / (sum(weight) + 1e-5) over the masked tokens
           + mean nll over the next-sentence labels (0: next sentence, 1: random sentence)

nll is the negative log-likelihood; the sums are over the global batch (Devlin et al. 2019, section
3.1). Packed rows have one next-sentence label per example. Records without next sentences have only
the first term (Liu et al. 2019). The left-to-right loss is the first term over the next tokens
(Devlin et al. 2019, section 5.1).
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bert.models.encoder import select_inputs
from keras_bert.models.heads import prediction_sums
from keras_bert.training.objective import Batch, Objective


class Prediction(NamedTuple):
    """The names of the logits, labels and label weights of a prediction.

    `logits` is a model output; `labels` and `weights` are features of a batch. If a batch lacks the
    feature of the weights, its `example_weights` are used. The loss is the weighted sum of the nll,
    divided by the sum of the weights plus `epsilon`.
    """

    logits: str
    labels: str
    weights: str
    epsilon: float


# Keys are the prefixes of the metrics.
PREDICTIONS = {
    "masked_lm": Prediction("masked_lm_logits", "masked_lm_ids", "masked_lm_weights", 1e-5),
    "next_sentence": Prediction(
        "next_sentence_logits", "next_sentence_labels", "next_sentence_weights", 0.0
    ),
    "next_token": Prediction("next_token_logits", "next_token_ids", "next_token_weights", 1e-5),
}
# The predictions of each value of --objective, with the prediction of tokens first.
OBJECTIVES = {
    "mlm_nsp": ("masked_lm", "next_sentence"),
    "mlm": ("masked_lm",),
    "ltr": ("next_token",),
}


class PretrainingObjective(Objective):
    """The objective for a `BertPretrainer` and batches of `pretraining.records`.

    `objective` is `mlm_nsp` for masked tokens and next sentences, `mlm` for masked tokens only, or
    `ltr` for next tokens, which needs a left-to-right model and matching batches.
    """

    def __init__(self, objective: str = "mlm_nsp"):
        self.predictions = OBJECTIVES[objective]
        names = [f"{name}_{k}" for k in ("loss", "accuracy") for name in self.predictions]
        self.metrics = tuple(names)
        self.losses = {f"{name}_loss": PREDICTIONS[name].epsilon for name in self.predictions}

    def weights(self, batch: Batch) -> dict[str, Any]:
        """Returns the sums of the weights of the labels, for the loss and for the accuracy."""
        weights = {name: ops.sum(label_weights(batch, name)) for name in self.predictions}
        return {metric: weights[metric.rpartition("_")[0]] for metric in self.metrics}

    def sums(self, model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        """Returns the sums of the nll and of the hits."""
        outputs = model(select_inputs(batch), training=training)
        sums = {}
        for name in self.predictions:
            prediction = PREDICTIONS[name]
            logits, labels = outputs[prediction.logits], batch[prediction.labels]
            score = prediction_sums(logits, labels, label_weights(batch, name))
            sums[f"{name}_loss"], sums[f"{name}_accuracy"] = score[0], score[1]
        return sums


def label_weights(batch: Batch, prediction: str) -> Any:
    """Returns the weights of the labels of `prediction`, a key of PREDICTIONS.

    Labels that count have weight 1, the others 0. The weights are float32: [B, P] for masked
    tokens, [B, S] for next tokens, and [B] for next sentences, or [B, P] if rows are packed.
    """
    # An unpacked row has one next-sentence label, which has the weight of the row.
    name = PREDICTIONS[prediction].weights
    return batch[name if name in batch else "example_weights"]
