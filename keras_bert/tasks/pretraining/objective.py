"""The pre-training task: batches in; sums of the masked-LM and next-sentence losses out.

Loss = sum(weight * nll) / (sum(weight) + 1e-5) over masked positions + mean nll of the
next-sentence label (0 is the next, 1 is random); both over the global batch (Devlin et al. 2019,
section 3.1). With packed rows the labels are those of every example in them. Records of no next
sentence leave the masked-LM loss alone (Liu et al. 2019). Left to right, the loss is that of the
next pieces alone, weighted as the masked ones are (Devlin et al. 2019, section 5.1).
"""

from typing import Any

import keras
from keras import ops

from keras_bert.models.layers.chain import chain
from keras_bert.training.objective import Batch, Objective

MODEL_INPUTS = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "position_ids",
    "example_ids",
    "masked_lm_positions",
    "next_sentence_positions",
    "dropout_seed",
)
# Prediction: the feature with its labels, and the epsilon of its loss.
LABELS = {
    "masked_lm": ("masked_lm_ids", 1e-5),
    "next_sentence": ("next_sentence_labels", 0.0),
    "next_piece": ("next_piece_ids", 1e-5),
}
# Prediction: the output of BertPretrainer with its logits. The figures keep the older name.
OUTPUTS = {
    "masked_lm": "masked_lm_logits",
    "next_sentence": "next_sentence_logits",
    "next_piece": "next_token_logits",
}
# Objective, a value of --objective: what it predicts, first of all pieces.
PREDICTIONS = {
    "mlm_nsp": ("masked_lm", "next_sentence"),
    "mlm": ("masked_lm",),
    "ltr": ("next_piece",),
}


def pretraining_objective(objective: str = "mlm_nsp") -> Objective:
    """Makes the task of an objective.

    Args:
        objective: `mlm_nsp`, masked pieces and the next sentence; `mlm`, masked pieces alone; or
            `ltr`, next pieces, which takes a left-to-right model and such batches.

    Returns:
        The task, for a `BertPretrainer` and the batches of `tasks.pretraining.batches`, packed or
        not.
    """
    predictions = PREDICTIONS[objective]

    def weights_of(batch: Batch) -> dict[str, Any]:
        weights = {name: ops.sum(label_weights(batch, name)) for name in predictions}
        return {
            f"{name}_{kind}": weights[name] for kind in ("loss", "accuracy") for name in predictions
        }

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, Any]:
        inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
        outputs = model(inputs, training=training)
        sums = {}
        for name in predictions:
            score = _score(
                outputs[OUTPUTS[name]], batch[LABELS[name][0]], label_weights(batch, name)
            )
            sums[f"{name}_loss"], sums[f"{name}_accuracy"] = score[0], score[1]
        return sums

    return Objective(
        figures=tuple(f"{name}_{k}" for k in ("loss", "accuracy") for name in predictions),
        losses={f"{name}_loss": LABELS[name][1] for name in predictions},
        weights=weights_of,
        sums=sums_of,
    )


def label_weights(batch: Batch, prediction: str) -> Any:
    """Returns 1 for each label that counts, 0 for the others.

    Args:
        batch: of tasks.pretraining.batches.
        prediction: a key of LABELS.

    Returns:
        [B, P] or [B, S] float32 of pieces, [B] or [B, P] of examples.
    """
    # A row that is one example has one next-sentence label, which weighs what the row weighs.
    own = f"{prediction}_weights"
    return batch[own if own in batch else "example_weights"]


@chain
def _score(logits: Any, labels: Any, weights: Any) -> Any:
    """Returns [the weighted sum of the negative log-likelihoods, that of the hits]."""
    nll = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    # The first of the largest, as argmax gives it; XLA's argmax takes nearly twice as long.
    largest = ops.max(logits, -1, keepdims=True)
    pieces = logits.shape[-1]
    first = ops.min(ops.where(logits == largest, ops.arange(pieces), pieces), -1)
    hits = ops.cast(first == labels, "float32")
    return ops.stack([ops.sum(weights * nll), ops.sum(weights * hits)])
