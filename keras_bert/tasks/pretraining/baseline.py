"""Computes the unigram baseline: the loss and accuracy of a model that ignores the context.

Such a model predicts every token and label from their frequencies alone. A pre-trained model should
have a lower loss and a higher accuracy.
"""

import numpy as np

from keras_bert.data.records import PretrainingData
from keras_bert.tasks.pretraining.batches import RecordSource, evaluation_batches
from keras_bert.tasks.pretraining.objective import OBJECTIVES, PREDICTIONS, label_weights
from keras_bert.tasks.pretraining.settings import SAMPLE_SIZE
from keras_bert.training.strategy import without_autotuning


def unigram_baseline(
    train: PretrainingData,
    held_out: PretrainingData,
    vocab_size: int,
    objective: str = "mlm_nsp",
    max_examples: int = SAMPLE_SIZE,
) -> dict[str, float]:
    """Scores predictions for `held_out` that depend only on frequencies in `train`.

    These are the frequencies of the tokens to predict and of the next-sentence labels. The count of
    every token is increased by 1, so that no probability is 0. About `max_examples` records of
    `train` and of `held_out` are read.

    Returns:
        "unigram_NAME_accuracy" (a fraction) for each prediction of the objective, and
        "unigram_NAME_loss" (nats per token) for the prediction of tokens. NAME is a key of
        objective.PREDICTIONS, such as "masked_lm".
    """
    trained = expected = _counts(train, vocab_size, objective, max_examples)
    if held_out is not train:
        expected = _counts(held_out, vocab_size, objective, max_examples)
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
    """Returns {prediction: total label weight of each token, [V], or next-sentence label, [2]}."""
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
