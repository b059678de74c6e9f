"""Tests the pre-training sums against NumPy, and the baseline against counts."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.pretraining.records import find_records
from keras_bert.pretraining.run import unigram_baseline

LOGITS = np.random.default_rng(0).normal(size=(2, 3, 7)).astype("float32")
NEXT = np.array([[2.0, -1.0], [0.5, 0.25]], "float32")
BATCH = {
    "input_ids": tf.zeros([2, 4], tf.int32),
    "masked_lm_ids": tf.constant([[1, 2, 0], [6, 0, 0]]),
    "masked_lm_weights": tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
    "next_sentence_labels": tf.constant([0, 1]),
    "example_weights": tf.constant([1.0, 1.0]),
}


def model(inputs, training):
    return {"masked_lm_logits": tf.constant(LOGITS), "next_sentence_logits": tf.constant(NEXT)}


def nll(logits, label):
    return -(logits[label] - np.log(np.exp(logits).sum()))


def test_loss_is_the_sum_of_masked_lm_and_next_sentence_means():
    task = PretrainingObjective()
    sums = {name: float(value) for name, value in task.sums(model, BATCH, False).items()}
    weights = {name: float(value) for name, value in task.weights(BATCH).items()}
    metrics = task.divide(
        np.array([sums[name] for name in task.metrics]),
        np.array([weights[name] for name in task.metrics]),
    )
    masked = nll(LOGITS[0, 0], 1) + nll(LOGITS[0, 1], 2) + nll(LOGITS[1, 0], 6)
    labels = nll(NEXT[0], 0) + nll(NEXT[1], 1)
    assert metrics["masked_lm_loss"] == pytest.approx(masked / (3 + 1e-5), rel=1e-6)
    assert metrics["next_sentence_loss"] == pytest.approx(labels / 2, rel=1e-6)
    assert metrics["loss"] == pytest.approx(masked / (3 + 1e-5) + labels / 2, rel=1e-6)
    assert metrics["next_sentence_accuracy"] == 0.5


@pytest.mark.parametrize("ids", [[1, 2], [3, 0], [6, 6]])
def test_accuracy_counts_the_largest_logits(ids):
    batch = BATCH | {"masked_lm_ids": tf.constant([[ids[0], ids[1], 0], [0, 0, 0]])}
    hits = PretrainingObjective().sums(model, batch, False)["masked_lm_accuracy"]
    best = LOGITS.argmax(-1)
    guesses = [(best[0, 0], ids[0]), (best[0, 1], ids[1]), (best[1, 0], 0)]
    assert float(hits) == sum(int(guess == label) for guess, label in guesses)


@pytest.mark.parametrize(("label", "hits"), [(2, 1.0), (3, 0.0), (5, 0.0)])
def test_first_of_equal_logits_is_the_prediction(label, hits):
    """Follows argmax; tokens 2 and 5 tie."""

    def tied(inputs, training):
        logits = tf.constant([[[0.0, 1.0, 4.0, 3.0, -1.0, 4.0, 2.0]]])
        return {"masked_lm_logits": logits, "next_sentence_logits": tf.zeros([1, 2])}

    batch = {
        "input_ids": tf.zeros([1, 4], tf.int32),
        "masked_lm_ids": tf.constant([[label]]),
        "masked_lm_weights": tf.ones([1, 1]),
        "next_sentence_labels": tf.constant([1]),
        "example_weights": tf.ones([1]),
    }
    sums = PretrainingObjective().sums(tied, batch, False)
    assert float(sums["masked_lm_accuracy"]) == hits
    assert float(sums["next_sentence_accuracy"]) == 0.0  # [0, 0]: label 0 is the prediction


def test_zero_weights_give_0_and_not_nan():
    task = PretrainingObjective()
    assert set(task.divide(np.zeros(4), np.zeros(4)).values()) == {0.0}


def test_baseline_predicts_by_frequency(tmp_path, write_records):
    path = write_records(tmp_path / "a.tfrecord", 50, vocab_size=6)
    examples = [tf.train.Example.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(path))]
    values = [example.features.feature for example in examples]
    n = sum(sum(value["masked_lm_weights"].float_list.value) for value in values)
    random_next = np.mean([value["next_sentence_labels"].int64_list.value[0] for value in values])
    records = find_records(str(path))
    baseline = unigram_baseline(records, records, 6)
    # Every masked token is id 5, counted n times; each of the 6 tokens has one extra count.
    assert baseline["unigram_masked_lm_loss"] == pytest.approx(-np.log((n + 1) / (n + 6)))
    assert baseline["unigram_masked_lm_accuracy"] == 1.0
    assert baseline["unigram_next_sentence_accuracy"] == max(random_next, 1 - random_next)
