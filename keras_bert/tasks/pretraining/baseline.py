"""The guess that knows only frequencies: records in; its loss and accuracies out.

A model that has learnt nothing from context ends here: it is what the losses and accuracies of
pre-training must be read against.
"""

import numpy as np

from keras_bert.tasks.pretraining.batches import evaluation_batches
from keras_bert.tasks.pretraining.records import PretrainingData
from keras_bert.tasks.pretraining.task import LABELS, label_weights


def unigram_baseline(
    train: PretrainingData, held_out: PretrainingData, vocab_size: int, max_examples: int = 100_000
) -> dict[str, float]:
    """Scores the guess that knows only how often each masked piece and each label occurs.

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
    batches = evaluation_batches(data, batch_size, vocab_size, -(-max_examples // batch_size))
    for batch in batches.as_numpy_iterator():
        for name, count in counts.items():
            labels = batch[LABELS[name][0]].ravel()
            count += np.bincount(labels, label_weights(batch, name).ravel(), len(count))
    return counts
