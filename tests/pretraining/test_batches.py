"""Batches of records of every kind: packing, masks, next sentences, left-to-right labels, order."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.pretraining import records as pretraining_records
from keras_bert.pretraining.records import (
    evaluation_batches,
    find_records,
    next_tokens,
    training_batches,
)
from keras_bert.pretraining.run import unigram_baseline
from tests.pretraining.conftest import edit_manifest

# --- kinds ---


VOCAB_SIZE, MASK, S, P = 48, 4, 32, 6
ROW = {"input_ids", "input_mask", "segment_ids"}
NEXT = {"next_token_ids", "next_token_weights"}
MASKS = {"masked_lm_positions", "masked_lm_ids", "masked_lm_weights"}
PACKED = {"position_ids", "example_ids", "next_sentence_positions", "next_sentence_weights"}
REST = {"next_sentence_labels", "example_weights", "dropout_seed"}
KINDS = [{"dynamic": d, "pack": p} for d in (False, True) for p in (False, True)]


def take(dataset, count=10**9):
    return [{k: v.numpy() for k, v in batch.items()} for batch in dataset.take(count)]


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("kind", "left_to_right"), [*((kind, False) for kind in KINDS), (KINDS[0], True)]
)
def test_batch_has_the_features_of_its_kind(tmp_path, write_dataset, kind, left_to_right):
    data = find_records(str(write_dataset(tmp_path / "a", **kind)))
    assert (data.max_seq_length, data.max_predictions_per_seq) == (S, P)
    batches = training_batches(data, VOCAB_SIZE, 4, seed=1, left_to_right=left_to_right)
    (batch,) = take(batches, 1)
    labels = NEXT if left_to_right else MASKS
    assert batch.keys() == ROW | labels | REST | (PACKED if kind["pack"] else set())
    assert batch["next_sentence_labels"].shape == ((4, P) if kind["pack"] else (4,))
    for name, value in batch.items():
        assert value.dtype == ("float32" if name.endswith("weights") else "int32"), name
        width = [] if value.ndim == 1 else [P if name in MASKS or "sentence" in name else S]
        assert value.shape == (4, *width), name
    assert all(spec.shape.is_fully_defined() for spec in batches.element_spec.values())
    (weights,) = (name for name in labels if name.endswith("weights"))
    assert batch[weights].sum(axis=1).min() >= 1
    assert (MASK in batch["input_ids"]) != left_to_right


def test_masks_of_a_step_equal_those_of_an_uninterrupted_run(tmp_path, write_dataset):
    data = find_records(str(write_dataset(tmp_path / "a", dynamic=True, pack=True)))
    uninterrupted = take(training_batches(data, VOCAB_SIZE, 4, seed=1), 42)
    for step in (1, 40):
        resumed = take(training_batches(data, VOCAB_SIZE, 4, seed=1, first_step=step), 2)
        assert same(uninterrupted[step], resumed[0])
        assert same(uninterrupted[step + 1], resumed[1])


def test_masks_differ_between_epochs_and_seeds(tmp_path, write_dataset):
    data = find_records(str(write_dataset(tmp_path / "a", dynamic=True)))
    n = data.num_examples

    def masked(seed):
        """Returns for each epoch the masked columns by the text before masking."""
        found = []
        for batch in take(training_batches(data, VOCAB_SIZE, n, seed), 2):
            ids = batch["input_ids"].copy()
            for row, count in enumerate(batch["masked_lm_weights"].sum(1).astype(int)):
                columns = batch["masked_lm_positions"][row, :count]
                ids[row, columns] = batch["masked_lm_ids"][row, :count]
            texts = [row.tobytes() for row in ids]
            found.append(dict(zip(texts, batch["masked_lm_positions"].tolist(), strict=True)))
        return found

    (one, two), (other, _) = masked(1), masked(2)
    assert one.keys() == two.keys() == other.keys()
    for a, b in ((one, two), (one, other)):
        assert sum(a[text] != b[text] for text in a) > 0.9 * n


def test_every_evaluation_has_the_same_masks(tmp_path, write_dataset):
    data = find_records(str(write_dataset(tmp_path / "a", dynamic=True)))
    one, two = (take(evaluation_batches(data, VOCAB_SIZE, 8)) for _ in range(2))
    assert all(same(a, b) for a, b in zip(one, two, strict=True))
    first, second = (batch["masked_lm_positions"] for batch in one[:2])
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("left_to_right", [False, True])
def test_records_that_pad_the_last_batch_have_zero_weight(tmp_path, write_dataset, left_to_right):
    data = find_records(str(write_dataset(tmp_path / "a", dynamic=True, pack=True)))
    size = data.num_examples - 1
    last = take(evaluation_batches(data, VOCAB_SIZE, size, left_to_right=left_to_right))[-1]
    label_weights = "next_token_weights" if left_to_right else "masked_lm_weights"
    for name in ("example_weights", label_weights, "next_sentence_weights"):
        assert last[name][0].max() == 1
        assert last[name][1:].sum() == 0


def test_records_of_different_kinds_in_one_run_are_rejected(tmp_path, write_dataset):
    write_dataset(tmp_path / "a", pack=True, dynamic=True, next_sentence="order")
    write_dataset(tmp_path / "b")
    with pytest.raises(InputError, match=r"b.records-.*: the record format is ") as caught:
        find_records(str(tmp_path / "*"))
    actual, expected = str(caught.value).split("; expected ")
    assert all(setting in actual for setting in ("'pack': False", "'dynamic': False", "'random'"))
    assert all(setting in expected for setting in ("'pack': True", "'dynamic': True", "'order'"))


def test_dynamic_records_with_different_masking_are_rejected(tmp_path, write_dataset):
    for folder, ngram in (("a", 1), ("b", 3)):
        write_dataset(tmp_path / folder, dynamic=True, ngram=ngram)
    with pytest.raises(InputError, match=r"'ngram': 3.*expected .*'ngram': 1"):
        find_records(str(tmp_path / "*"))
    for folder in ("a", "b"):  # The masking settings of static records may differ.
        write_dataset(tmp_path / "static" / folder, ngram=1 if folder == "a" else 3)
    assert find_records(str(tmp_path / "static" / "*")).masking is None


def test_masking_settings_of_dynamic_records_are_in_the_fingerprint(tmp_path, write_dataset):
    folder = write_dataset(tmp_path / "a", dynamic=True)
    before = find_records(str(folder)).fingerprint
    edit_manifest(folder, lambda manifest: manifest["settings"].update(masked_lm_prob=0.2))
    assert find_records(str(folder)).fingerprint != before


def test_changed_vocabulary_is_rejected(tmp_path, write_dataset):
    folder = write_dataset(tmp_path / "a", dynamic=True)
    vocab = (folder / "vocab.txt").read_text().split("\n")
    vocab[-3], vocab[6] = vocab[6], vocab[-3]  # the size is the same
    (folder / "vocab.txt").write_text("\n".join(vocab))
    with pytest.raises(InputError, match=r"vocab\.txt: has changed since the records were created"):
        find_records(str(folder))
    (folder / "vocab.txt").unlink()
    with pytest.raises(InputError, match=r"vocab\.txt: cannot be read"):
        find_records(str(folder))


@pytest.mark.parametrize(
    ("kind", "words"),
    [({"pack": True}, "packed rows"), ({"dynamic": True}, "records without masks")],
)
def test_missing_manifest_of_records_that_need_it_is_reported(tmp_path, write_dataset, kind, words):
    folder = write_dataset(tmp_path / "a", **kind)
    (folder / "manifest.json").unlink()
    with pytest.raises(
        InputError, match=rf"manifest\.json: file not found.*records-.* contains {words}"
    ):
        find_records(str(folder))


# --- order of records, a function of (seed, step) ---


@pytest.fixture
def data(tmp_path, write_records):
    for shard in range(3):
        write_records(tmp_path / f"records-{shard}.tfrecord", 10, seed=shard)
    return find_records(str(tmp_path / "*.tfrecord"))


def test_epoch_reads_every_record_once_in_a_new_order(data):
    batches = take(training_batches(data, 50, 10, seed=1), 6)
    ids = np.concatenate([b["input_ids"] for b in batches])
    first, second = ids[:30], ids[30:]
    assert len({row.tobytes() for row in first}) == 30
    assert {row.tobytes() for row in first} == {row.tobytes() for row in second}
    assert not np.array_equal(first, second)
    # Another seed gives another order and other dropout masks; the global seed does not.
    tf.random.set_seed(7)
    (again,), (other,) = (take(training_batches(data, 50, 10, seed=s), 1) for s in (1, 2))
    assert same(batches[0], again)
    for name in ("input_ids", "dropout_seed"):
        assert not np.array_equal(again[name], other[name])


@pytest.mark.slow
def test_many_files_and_a_small_shuffle_buffer_give_each_record_once(
    tmp_path, write_records, monkeypatch
):
    monkeypatch.setattr(pretraining_records, "SHUFFLE_BUFFER", 7)
    for shard in range(9):  # more than are read at a time
        write_records(tmp_path / f"{shard}.tfrecord", 3 + shard % 3, seed=shard)
    data = find_records(str(tmp_path))
    n = data.num_examples
    uninterrupted = take(training_batches(data, 50, 1, seed=1), 2 * n + 3)
    for epoch in (uninterrupted[:n], uninterrupted[n : 2 * n]):
        assert len({batch["input_ids"].tobytes() for batch in epoch}) == n
    for step in (1, n - 1, n, n + 5):
        (resumed,) = take(training_batches(data, 50, 1, seed=1, first_step=step), 1)
        assert same(uninterrupted[step], resumed)


# --- left to right ---


TEXT = [[2, 7, 8, 6, 3, 0], [2, 9, 9, 3, 5, 3]]
MASKED = {
    # [MASK], another token, and the token itself; padded predictions do not change [CLS].
    "input_ids": tf.constant([[2, 7, MASK, 11, 3, 0], [2, 9, 9, 3, MASK, 3]]),
    "input_mask": tf.constant([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]),
    "masked_lm_positions": tf.constant([[2, 3, 0], [1, 4, 0]]),
    "masked_lm_ids": tf.constant([[8, 6, 0], [9, 5, 0]]),
    "masked_lm_weights": tf.constant([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]),
}


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


def test_baseline_counts_next_tokens(tmp_path, write_dataset):
    data = find_records(str(write_dataset(tmp_path / "a")))
    batches = take(evaluation_batches(data, VOCAB_SIZE, 64, left_to_right=True))
    labels = np.concatenate([b["next_token_ids"][b["next_token_weights"] > 0] for b in batches])
    counts = np.bincount(labels, minlength=VOCAB_SIZE)
    log_probabilities = np.log((counts + 1) / (counts + 1).sum())
    baseline = unigram_baseline(data, data, VOCAB_SIZE, "ltr")
    assert baseline == {
        "unigram_next_token_loss": pytest.approx(-log_probabilities[labels].mean()),
        "unigram_next_token_accuracy": pytest.approx(counts.max() / counts.sum()),
    }
