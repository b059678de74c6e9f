"""The pre-training objectives: masked tokens, next sentences, and next tokens.

Loss = sum(weight * nll) / (sum(weight) + 1e-5) over masked positions + mean nll of the
next-sentence label (0 for next, 1 for random); both over the global batch (Devlin et al. 2019,
section 3.1). Packed rows have one label per example. Records without next sentences have only the
masked-LM loss (Liu et al. 2019). The left-to-right loss is that of the next tokens, with the same
formula as for masked tokens (Devlin et al. 2019, section 5.1).
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bert.models.bert_network import select_inputs
from keras_bert.models.layers.chain import chain
from keras_bert.training.objective import Batch, Objective


class Prediction(NamedTuple):
    """One prediction of a pre-training objective.

    Attributes:
        logits: the name of the output of `BertPretrainer`.
        labels: the name of the labels in a batch.
        weights: the name of the label weights; `example_weights` if a batch has no such feature.
        epsilon: added to the sum of the weights in the loss.
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


def pretraining_objective(objective: str = "mlm_nsp") -> Objective:
    """Creates an objective for a `BertPretrainer` and batches of `tasks.pretraining.batches`.

    Args:
        objective: `mlm_nsp` for masked tokens and next sentences, `mlm` for masked tokens only, or
            `ltr` for next tokens, which needs a left-to-right model and matching batches.
    """
    predictions = OBJECTIVES[objective]

    def weights_of(batch: Batch) -> dict[str, Any]:
        weights = {name: ops.sum(label_weights(batch, name)) for name in predictions}
        return {
            f"{name}_{kind}": weights[name] for kind in ("loss", "accuracy") for name in predictions
        }

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        outputs = model(select_inputs(batch), training=training)
        sums = {}
        for name in predictions:
            prediction = PREDICTIONS[name]
            logits, labels = outputs[prediction.logits], batch[prediction.labels]
            score = _score(logits, labels, label_weights(batch, name))
            sums[f"{name}_loss"], sums[f"{name}_accuracy"] = score[0], score[1]
        return sums

    return Objective(
        metrics=tuple(f"{name}_{k}" for k in ("loss", "accuracy") for name in predictions),
        losses={f"{name}_loss": PREDICTIONS[name].epsilon for name in predictions},
        weights=weights_of,
        sums=sums_of,
    )


def label_weights(batch: Batch, prediction: str) -> Any:
    """Returns the label weights, 1 for each label that counts and 0 for the others.

    Args:
        batch: a batch of tasks.pretraining.batches.
        prediction: a key of PREDICTIONS.

    Returns:
        float32, [B, P] or [B, S] for tokens, [B] or [B, P] for examples.
    """
    # An unpacked row has one next-sentence label, whose weight is that of the row.
    name = PREDICTIONS[prediction].weights
    return batch[name if name in batch else "example_weights"]


@chain
def _score(logits: Any, labels: Any, weights: Any) -> Any:
    """Returns [weighted sum of the negative log-likelihoods, weighted sum of the hits]."""
    nll = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    # The first maximum, as with argmax; XLA's argmax takes nearly twice as long.
    largest = ops.max(logits, -1, keepdims=True)
    vocab_size = logits.shape[-1]
    first = ops.min(ops.where(logits == largest, ops.arange(vocab_size), vocab_size), -1)
    hits = ops.cast(first == labels, "float32")
    return ops.stack([ops.sum(weights * nll), ops.sum(weights * hits)])
