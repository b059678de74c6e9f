"""The pre-training task: batches in; sums of the masked-LM and next-sentence losses out.

Loss = sum(weight * nll) / (sum(weight) + 1e-5) over masked positions + mean nll of the
next-sentence label (0 is the next, 1 is random); both over the global batch (Devlin et al. 2019,
section 3.1). With packed rows the labels are those of every example in them. Records of no next
sentence leave the masked-LM loss alone (Liu et al. 2019).
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
LABELS = {"masked_lm": ("masked_lm_ids", 1e-5), "next_sentence": ("next_sentence_labels", 0.0)}


def pretraining_task(next_sentence: bool = True) -> Task:
    """Makes the task of masked-LM and next-sentence prediction.

    Args:
        next_sentence: whether to predict the next sentence; else masked pieces alone.

    Returns:
        The task, for a `BertPretrainer` and the batches of `tasks.pretraining.batches`, packed or
        not.
    """
    predictions = list(LABELS) if next_sentence else ["masked_lm"]

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
    """Returns 1 for each label that counts: [B, P] of masked pieces, [B] or [B, P] of examples."""
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
    train: PretrainingData, held_out: PretrainingData, vocab_size: int, max_examples: int = 100_000
) -> dict[str, float]:
    """Scores the guess that knows only how often each masked piece and each label occurs.

    A model that has learnt nothing from context ends here: it is what the losses and accuracies
    of pre-training must be read against.

    Args:
        train: records whose masked pieces and labels are counted; each gets one count for free.
        held_out: records whose masked pieces and labels are guessed.
        vocab_size: V.
        max_examples: about so many records of each are read at most.

    Returns:
        {"unigram_masked_lm_loss": nats a piece, "unigram_masked_lm_accuracy": share,
        "unigram_next_sentence_accuracy": share}; the last only where records have next sentences.
    """
    seen, asked = (_counts(data, vocab_size, max_examples) for data in (train, held_out))
    shares = {
        f"unigram_{name}_accuracy": float(asked[name][seen[name].argmax()] / asked[name].sum())
        for name in LABELS
    }
    if held_out.kind.next_sentence == "none":
        del shares["unigram_next_sentence_accuracy"]
    probabilities = (seen["masked_lm"] + 1) / (seen["masked_lm"] + 1).sum()
    nats = -(asked["masked_lm"] * np.log(probabilities)).sum() / asked["masked_lm"].sum()
    return {"unigram_masked_lm_loss": float(nats)} | shares


def _counts(data: PretrainingData, vocab_size: int, max_examples: int) -> dict[str, np.ndarray]:
    """Counts the masked pieces [V] and the next-sentence labels [2] of records."""
    counts = {"masked_lm": np.zeros([vocab_size]), "next_sentence": np.zeros([2])}
    batch_size = min(1000, data.num_examples)
    for batch in evaluation_batches(data, batch_size, vocab_size, -(-max_examples // batch_size)):
        for name, count in counts.items():
            labels = batch[LABELS[name][0]].numpy().ravel()
            count += np.bincount(labels, _label_weights(batch, name).numpy().ravel(), len(count))
    return counts
