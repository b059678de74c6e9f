"""The pre-training task: batches in; sums of the masked-LM and next-sentence losses out.

Loss = sum(weight * nll) / (sum(weight) + 1e-5) over masked positions + mean nll of the
next-sentence label (0 is the next, 1 is random); both over the global batch (Devlin et al. 2019,
section 3.1).
"""

import keras
import numpy as np
import tensorflow as tf

from keras_bert.layers.chain import chain
from keras_bert.tasks.pretraining_data import evaluation_batches
from keras_bert.tasks.pretraining_files import PretrainingData
from keras_bert.training.task import Batch, Task

MODEL_INPUTS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "dropout_seed")


def pretraining_task() -> Task:
    """Makes the task of masked-LM and next-sentence prediction.

    Returns:
        The task, for a `BertPretrainer` and the batches of `tasks.pretraining_data`.
    """
    return Task(
        figures=(
            "masked_lm_loss",
            "next_sentence_loss",
            "masked_lm_accuracy",
            "next_sentence_accuracy",
        ),
        losses={"masked_lm_loss": 1e-5, "next_sentence_loss": 0.0},
        weights=_weights,
        sums=_sums,
    )


def _weights(batch: Batch) -> dict[str, tf.Tensor]:
    masked = tf.reduce_sum(batch["masked_lm_weights"])
    examples = tf.reduce_sum(batch["example_weights"])
    return {
        "masked_lm_loss": masked,
        "masked_lm_accuracy": masked,
        "next_sentence_loss": examples,
        "next_sentence_accuracy": examples,
    }


def _sums(model: keras.Model, batch: Batch, training: bool) -> dict[str, tf.Tensor]:
    inputs = {name: batch[name] for name in MODEL_INPUTS if name in batch}
    outputs = model(inputs, training=training)
    sums = {}
    for name, labels, weights in (
        ("masked_lm", "masked_lm_ids", "masked_lm_weights"),
        ("next_sentence", "next_sentence_labels", "example_weights"),
    ):
        logits, labels, weights = outputs[f"{name}_logits"], batch[labels], batch[weights]
        sums[f"{name}_loss"], sums[f"{name}_accuracy"] = tf.unstack(_score(logits, labels, weights))
    return sums


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
        max_examples: at most so many records of each are read.

    Returns:
        {"unigram_masked_lm_loss": nats a piece, "unigram_masked_lm_accuracy": share,
        "unigram_next_sentence_accuracy": share}.
    """
    seen, asked = (_counts(data, vocab_size, max_examples) for data in (train, held_out))
    probabilities = (seen[0] + 1) / (seen[0] + 1).sum()
    return {
        "unigram_masked_lm_loss": float(-(asked[0] * np.log(probabilities)).sum() / asked[0].sum()),
        "unigram_masked_lm_accuracy": float(asked[0][seen[0].argmax()] / asked[0].sum()),
        "unigram_next_sentence_accuracy": float(asked[1][seen[1].argmax()] / asked[1].sum()),
    }


def _counts(
    data: PretrainingData, vocab_size: int, max_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Counts the masked pieces [V] and the next-sentence labels [2] of records."""
    pieces, labels = np.zeros([vocab_size]), np.zeros([2])
    batch_size = min(1000, data.num_examples)
    for batch in evaluation_batches(data, batch_size, vocab_size, -(-max_examples // batch_size)):
        for counts, values, weights in (
            (pieces, "masked_lm_ids", "masked_lm_weights"),
            (labels, "next_sentence_labels", "example_weights"),
        ):
            counts += np.bincount(
                batch[values].numpy().ravel(), batch[weights].numpy().ravel(), len(counts)
            )
    return pieces, labels
