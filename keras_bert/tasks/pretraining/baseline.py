"""The unigram baseline: loss and accuracy of predictions from token frequencies alone.

A model that does not use the context reaches this baseline. Compare the losses and accuracies of
pre-training with it.
"""

import numpy as np

from keras_bert.data.pretraining_records import PretrainingData
from keras_bert.tasks.pretraining.batches import RecordSource, evaluation_batches
from keras_bert.tasks.pretraining.objective import OBJECTIVES, PREDICTIONS, label_weights
from keras_bert.tasks.pretraining.settings import SAMPLE_SIZE
from keras_bert.training.distribute import without_autotuning


def unigram_baseline(
    train: PretrainingData,
    held_out: PretrainingData,
    vocab_size: int,
    objective: str = "mlm_nsp",
    max_examples: int = SAMPLE_SIZE,
) -> dict[str, float]:
    """Scores predictions by the frequency of each token and label.

    Args:
        train: records whose tokens and labels are counted, with add-one smoothing of tokens.
        held_out: records whose tokens and labels are predicted.
        vocab_size: V.
        objective: the name of the objective, as for `pretraining_objective`.
        max_examples: the approximate maximum number of records read from each.

    Returns:
        {"unigram_masked_lm_loss": nats per token, "unigram_masked_lm_accuracy": fraction,
        "unigram_next_sentence_accuracy": fraction}, or the same for the objective's predictions.
    """
    trained, expected = (
        _counts(data, vocab_size, objective, max_examples) for data in (train, held_out)
    )
    predictions = OBJECTIVES[objective]
    tokens = predictions[0]
    probabilities = (trained[tokens] + 1) / (trained[tokens] + 1).sum()
    nats = -(expected[tokens] * np.log(probabilities)).sum() / expected[tokens].sum()
    return {f"unigram_{tokens}_loss": float(nats)} | {
        f"unigram_{name}_accuracy": float(
            expected[name][trained[name].argmax()] / expected[name].sum()
        )
        for name in predictions
    }


def _counts(
    data: PretrainingData, vocab_size: int, objective: str, max_examples: int
) -> dict[str, np.ndarray]:
    """Counts the weighted labels: tokens [V] and next-sentence labels [2]."""
    counts = {
        name: np.zeros([2 if name == "next_sentence" else vocab_size])
        for name in OBJECTIVES[objective]
    }
    batch_size = min(1000, data.num_examples)
    max_batches = -(-max_examples // batch_size)
    source = RecordSource(data, vocab_size, left_to_right=objective == "ltr")
    batches = evaluation_batches(source, batch_size, max_batches)
    for batch in without_autotuning(batches).as_numpy_iterator():
        for name, count in counts.items():
            labels = batch[PREDICTIONS[name].labels].ravel()
            count += np.bincount(labels, label_weights(batch, name).ravel(), len(count))
    return counts
