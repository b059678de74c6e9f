"""Tests left-to-right batches: the text before masking, and each next token as the label."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.data.records import find_records
from keras_bert.tasks.pretraining.baseline import unigram_baseline
from keras_bert.tasks.pretraining.batches import RecordSource, evaluation_batches, training_batches
from keras_bert.tasks.pretraining.left_to_right import next_tokens
from keras_bert.tasks.pretraining.objective import pretraining_objective

VOCAB_SIZE, MASK = 48, 4
KINDS = [{"dynamic": d, "pack": p} for d in (False, True) for p in (False, True)]
TEXT = [[2, 7, 8, 6, 3, 0], [2, 9, 9, 3, 5, 3]]
MASKED = {
    # [MASK], another token, and the token itself; padded predictions do not change [CLS].
    "input_ids": tf.constant([[2, 7, MASK, 11, 3, 0], [2, 9, 9, 3, MASK, 3]]),
    "input_mask": tf.constant([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]),
    "masked_lm_positions": tf.constant([[2, 3, 0], [1, 4, 0]]),
    "masked_lm_ids": tf.constant([[8, 6, 0], [9, 5, 0]]),
    "masked_lm_weights": tf.constant([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]),
}


def take(dataset, count=10**9):
    return [{k: v.numpy() for k, v in batch.items()} for batch in dataset.take(count)]


def test_text_is_restored_and_each_label_is_the_next_token():
    batch = next_tokens(MASKED)
    assert batch.keys() == {"input_ids", "input_mask", "next_token_ids", "next_token_weights"}
    assert batch["input_ids"].numpy().tolist() == TEXT
    assert batch["next_token_ids"].numpy().tolist() == [[7, 8, 6, 3, 0, 0], [9, 9, 3, 5, 3, 0]]
    weights = batch["next_token_weights"].numpy().tolist()
    assert weights == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]


def test_last_token_of_a_packed_example_has_no_label():
    examples = tf.constant([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 2, 2]])
    weights = next_tokens(MASKED | {"example_ids": examples})["next_token_weights"]
    assert weights.numpy().tolist() == [[1, 1, 0, 1, 0, 0], [1, 1, 1, 0, 1, 0]]


def test_loss_is_the_mean_over_all_real_tokens_except_the_last():
    logits = np.random.default_rng(0).normal(size=(2, 6, 13)).astype("float32")
    task = pretraining_objective("ltr")
    batch = next_tokens(MASKED)
    sums = task.sums(lambda inputs, training: {"next_token_logits": logits}, batch, False)
    metrics = task.divide(*([float(of[n]) for n in task.metrics] for of in (sums, weights(batch))))
    places = [(row, place) for row, length in enumerate((5, 6)) for place in range(length - 1)]
    nll = [
        np.log(np.exp(logits[row, place]).sum()) - logits[row, place, TEXT[row][place + 1]]
        for row, place in places
    ]
    hits = [logits[row, place].argmax() == TEXT[row][place + 1] for row, place in places]
    assert metrics.keys() == {"loss", "next_token_loss", "next_token_accuracy"}
    assert metrics["loss"] == metrics["next_token_loss"]
    assert metrics["loss"] == pytest.approx(sum(nll) / (9 + 1e-5), rel=1e-6)
    assert metrics["next_token_accuracy"] == pytest.approx(np.mean(hits))


def weights(batch):
    return pretraining_objective("ltr").weights(batch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_records_of_every_kind_give_the_same_features(tmp_path, write_dataset, kind):
    data = find_records(str(write_dataset(tmp_path / "a", **kind)))
    (batch,) = take(
        training_batches(RecordSource(data, VOCAB_SIZE, left_to_right=True), 4, seed=1), 1
    )
    assert not [name for name in batch if name.startswith("masked_lm")]
    assert MASK not in batch["input_ids"]
    assert (batch["next_token_ids"].dtype, batch["next_token_weights"].dtype) == (
        "int32",
        "float32",
    )
    spec = training_batches(RecordSource(data, VOCAB_SIZE, left_to_right=True), 4, 1).element_spec
    assert all(feature.shape.is_fully_defined() for feature in spec.values())
    # The last batch is padded with rows of zero weight.
    size = data.num_examples - 1
    last = take(evaluation_batches(RecordSource(data, VOCAB_SIZE, left_to_right=True), size))[-1]
    assert last["next_token_weights"][0].sum() > 0
    assert last["next_token_weights"][1:].sum() == 0


def test_masked_records_are_restored_to_the_original_text(tmp_path, write_dataset):
    masked, unmasked = (
        take(
            evaluation_batches(
                RecordSource(
                    find_records(str(write_dataset(tmp_path / str(d), dynamic=d))),
                    VOCAB_SIZE,
                    left_to_right=True,
                ),
                64,
            )
        )
        for d in (False, True)
    )
    texts = [
        {row.tobytes() for batch in batches for row in batch["input_ids"]}
        for batches in (masked, unmasked)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_baseline_counts_next_tokens(tmp_path, write_dataset, dynamic):
    data = find_records(str(write_dataset(tmp_path / "a", dynamic=dynamic)))
    batches = take(evaluation_batches(RecordSource(data, VOCAB_SIZE, left_to_right=True), 64))
    labels = np.concatenate([b["next_token_ids"][b["next_token_weights"] > 0] for b in batches])
    counts = np.bincount(labels, minlength=VOCAB_SIZE)
    log_probabilities = np.log((counts + 1) / (counts + 1).sum())
    baseline = unigram_baseline(data, data, VOCAB_SIZE, "ltr")
    assert baseline == {
        "unigram_next_token_loss": pytest.approx(-log_probabilities[labels].mean()),
        "unigram_next_token_accuracy": pytest.approx(counts.max() / counts.sum()),
    }
