"""The pre-training task: batches in; sums of the masked-LM and next-sentence losses out.

Loss = sum(weight * nll) / (sum(weight) + 1e-5) over masked positions + mean nll of the
next-sentence label (0 is the next, 1 is random); both over the global batch (Devlin et al. 2019,
section 3.1). With packed rows the labels are those of every example in them. Records of no next
sentence leave the masked-LM loss alone (Liu et al. 2019). Left to right, the loss is that of the
next pieces alone, weighted as the masked ones are (Devlin et al. 2019, section 5.1).
"""

import keras
import numpy as np
import tensorflow as tf

from keras_bert.layers.chain import chain
from keras_bert.tasks.pretraining.batches import evaluation_batches
from keras_bert.tasks.pretraining.records import PretrainingData
from keras_bert.training.task import Batch, Task

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
# Objective, a value of --objective: what it predicts, first of all pieces.
PREDICTIONS = {
    "mlm_nsp": ("masked_lm", "next_sentence"),
    "mlm": ("masked_lm",),
    "ltr": ("next_piece",),
}


def pretraining_task(objective: str = "mlm_nsp") -> Task:
    """Makes the task of an objective.

    Args:
        objective: `mlm_nsp`, masked pieces and the next sentence; `mlm`, masked pieces alone; or
            `ltr`, next pieces, which takes a left-to-right model and such batches.

    Returns:
        The task, for a `BertPretrainer` and the batches of `tasks.pretraining.batches`, packed or
        not.
    """
    predictions = PREDICTIONS[objective]

    def weights_of(batch: Batch) -> dict[str, tf.Tensor]:
        weights = {name: tf.reduce_sum(_label_weights(batch, name)) for name in predictions}
        return {
            f"{name}_{kind}": weights[name] for kind in ("loss", "accuracy") for name in predictions
        }

    def sums_of(model: keras.Model, batch: Batch, training: bool) -> dict[str, tf.Tensor]:
        inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
        outputs = model(inputs, training=training)
        sums = {}
        for name in predictions:
            score = _score(
                outputs[f"{name}_logits"], batch[LABELS[name][0]], _label_weights(batch, name)
            )
            sums[f"{name}_loss"], sums[f"{name}_accuracy"] = tf.unstack(score)
        return sums

    return Task(
        figures=tuple(f"{name}_{k}" for k in ("loss", "accuracy") for name in predictions),
        losses={f"{name}_loss": LABELS[name][1] for name in predictions},
        weights=weights_of,
        sums=sums_of,
    )


def _label_weights(batch: Batch, prediction: str) -> tf.Tensor:
    """Returns 1 for each label that counts: [B, P] or [B, S] for pieces, [B] or [B, P] for rows."""
    # A row that is one example has one next-sentence label, which weighs what the row weighs.
    own = f"{prediction}_weights"
    return batch[own if own in batch else "example_weights"]


@chain
def _score(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns [the weighted sum of the negative log-likelihoods, that of the hits]."""
    nll = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    # The first of the largest, as argmax gives it; XLA's argmax takes nearly twice as long.
    largest = tf.reduce_max(logits, -1, keepdims=True)
    pieces = logits.shape[-1]
    first = tf.reduce_min(tf.where(logits == largest, tf.range(pieces), pieces), -1)
    hits = tf.cast(first == labels, tf.float32)
    return tf.stack([tf.reduce_sum(weights * nll), tf.reduce_sum(weights * hits)])


def unigram_baseline(
    train: PretrainingData,
    held_out: PretrainingData,
    vocab_size: int,
    objective: str = "mlm_nsp",
    max_examples: int = 100_000,
) -> dict[str, float]:
    """Scores the guess that knows only how often each piece to predict and each label occurs.

    A model that has learnt nothing from context ends here: it is what the losses and accuracies
    of pre-training must be read against.

    Args:
        train: records whose pieces and labels are counted; each piece gets one count for free.
        held_out: records whose pieces and labels are guessed.
        vocab_size: V.
        objective: what is predicted, as for `pretraining_task`.
        max_examples: about so many records of each are read at most.

    Returns:
        {"unigram_masked_lm_loss": nats a piece, "unigram_masked_lm_accuracy": share,
        "unigram_next_sentence_accuracy": share}, or those of what else the objective predicts.
    """
    seen, asked = (_counts(data, vocab_size, objective, max_examples) for data in (train, held_out))
    predictions = PREDICTIONS[objective]
    pieces = predictions[0]
    probabilities = (seen[pieces] + 1) / (seen[pieces] + 1).sum()
    nats = -(asked[pieces] * np.log(probabilities)).sum() / asked[pieces].sum()
    return {f"unigram_{pieces}_loss": float(nats)} | {
        f"unigram_{name}_accuracy": float(asked[name][seen[name].argmax()] / asked[name].sum())
        for name in predictions
    }


def _counts(
    data: PretrainingData, vocab_size: int, objective: str, max_examples: int
) -> dict[str, np.ndarray]:
    """Counts what is to be predicted: pieces [V], and next-sentence labels [2]."""
    counts = {
        name: np.zeros([2 if name == "next_sentence" else vocab_size])
        for name in PREDICTIONS[objective]
    }
    batch_size = min(1000, data.num_examples)
    most = -(-max_examples // batch_size)
    for batch in evaluation_batches(data, batch_size, vocab_size, most, objective == "ltr"):
        for name, count in counts.items():
            labels = batch[LABELS[name][0]].numpy().ravel()
            count += np.bincount(labels, _label_weights(batch, name).numpy().ravel(), len(count))
    return counts
