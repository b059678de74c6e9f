"""The guess that knows only frequencies: records in; its loss and accuracies out.

A model that has learnt nothing from context ends here: it is what the losses and accuracies of
pre-training must be read against.
"""

import numpy as np

from keras_bert.tasks.pretraining.batches import evaluation_batches
from keras_bert.tasks.pretraining.objective import LABELS, PREDICTIONS, label_weights
from keras_bert.tasks.pretraining.records import SAMPLE_SIZE, PretrainingData
from keras_bert.training.distribute import untuned


def unigram_baseline(
    train: PretrainingData,
    held_out: PretrainingData,
    vocab_size: int,
    objective: str = "mlm_nsp",
    max_examples: int = SAMPLE_SIZE,
) -> dict[str, float]:
    """Scores the guess that knows only how often each piece to predict and each label occurs.

    Args:
        train: records whose pieces and labels are counted; each piece gets one count for free.
        held_out: records whose pieces and labels are guessed.
        vocab_size: V.
        objective: what is predicted, as for `pretraining_objective`.
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
    batches = evaluation_batches(
        data, batch_size, vocab_size, most, left_to_right=objective == "ltr"
    )
    for batch in untuned(batches).as_numpy_iterator():
        for name, count in counts.items():
            labels = batch[LABELS[name][0]].ravel()
            count += np.bincount(labels, label_weights(batch, name).ravel(), len(count))
    return counts
