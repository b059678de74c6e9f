"""Tests batches: every example once per epoch, little padding, determined by (seed, step)."""

from dataclasses import replace

import numpy as np
import pytest

from keras_bert.tasks.classification.processor import ClassificationProcessor, ClassifierSettings
from keras_bert.tasks.fine_tuning.batches import (
    BatchSettings,
    bucket_lengths,
    epoch_plan,
    evaluation_batches,
    steps_per_epoch,
    training_batches,
)
from keras_bert.tasks.losses import NO_OUTPUT
from keras_bert.tasks.prepared import prepare
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import load_vocab


def eights(seed=0, **changes):
    return BatchSettings(8, max_seq_length=64, seed=seed, **changes)


def arrays(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def test_every_example_is_read_once_per_epoch_and_last_batch_is_padded(make_examples):
    examples = make_examples(50)
    batches = arrays(training_batches(examples, eights(1)), 14)
    for epoch in (batches[:7], batches[7:]):
        index = np.concatenate([batch["example_index"] for batch in epoch])
        assert sorted(index[index >= 0]) == list(range(50))
        weights = np.concatenate([batch["example_weights"] for batch in epoch])
        np.testing.assert_array_equal(weights, index >= 0)
    assert [b["example_weights"].sum() for b in batches] == [8] * 6 + [2] + [8] * 6 + [2]


def test_batch_holds_its_examples_padded_to_a_bucket(make_examples):
    examples = make_examples(50)
    rows = [row.tolist() for row in examples.rows(examples.input_ids)]
    tags = [row.tolist() for row in examples.rows(examples.token_labels["tags"])]
    for batch in arrays(training_batches(examples, eights(1, pad_token_id=49)), 7):
        length = batch["input_ids"].shape[1]
        assert length in bucket_lengths(64)
        for row, index in enumerate(batch["example_index"]):
            if index < 0:
                continue
            real = len(rows[index])
            padding = length - real
            assert batch["input_ids"][row].tolist() == rows[index] + [49] * padding
            assert batch["input_mask"][row].tolist() == [1] * real + [0] * padding
            assert batch["tags"][row].tolist() == tags[index] + [-1] * padding
            assert batch["labels"][row] == examples.labels["labels"][index]
        real = batch["input_mask"].sum(axis=1).max()
        assert length - real < 8


def test_outputs_of_a_teacher_are_padded_so_that_they_do_not_count(make_examples):
    examples = make_examples(20)
    count = len(examples.input_ids)
    outputs = {
        "teacher_start_logits": np.arange(count, dtype=np.float32),
        "teacher_logits": np.ones([count, 3], np.float32),
    }
    examples = replace(examples, token_labels={**examples.token_labels, **outputs})
    (batch,) = arrays(training_batches(examples, eights(1)), 1)
    starts = [row.tolist() for row in examples.rows(outputs["teacher_start_logits"])]
    for row, index in enumerate(batch["example_index"]):
        real = batch["input_mask"][row].sum()
        assert batch["teacher_start_logits"][row, :real].tolist() == starts[index]
        for name, values in outputs.items():
            assert batch[name].dtype == values.dtype
            assert (batch[name][row, real:] == NO_OUTPUT).all()
    assert (batch["input_mask"] == 0).any()


@pytest.mark.parametrize("first_step", [3, 7, 20])
def test_batch_of_a_step_does_not_depend_on_the_first_step(make_examples, first_step):
    examples = make_examples(50)
    uninterrupted = arrays(training_batches(examples, eights(5)), first_step + 9)
    late = arrays(training_batches(examples, eights(5), first_step), 9)
    for one, two in zip(uninterrupted[first_step:], late, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], two[name])


def test_order_differs_by_epoch_and_seed_and_dropout_seeds_are_unique(make_examples):
    examples = make_examples(64)
    one = epoch_plan(examples.lengths, 8, seed=0, epoch=0)
    assert not np.array_equal(one, epoch_plan(examples.lengths, 8, seed=0, epoch=1))
    assert not np.array_equal(one, epoch_plan(examples.lengths, 8, seed=1, epoch=0))
    first, second = arrays(training_batches(examples, eights()), 2)
    assert len({*first["dropout_seed"], *second["dropout_seed"]}) == 16


def test_evaluation_reads_every_example_once_longest_first(make_examples):
    examples = make_examples(21)
    batches = list(evaluation_batches(examples, eights()).as_numpy_iterator())
    index = np.concatenate([batch["example_index"] for batch in batches])
    assert sorted(index[index >= 0]) == list(range(21))
    lengths = examples.lengths[index[index >= 0]]
    assert (np.diff(lengths) <= 0).all()
    assert batches[-1]["example_weights"].tolist() == [1] * 5 + [0] * 3


def test_buckets_end_at_the_longest_length():
    assert bucket_lengths(20).tolist() == [8, 16, 20]
    assert bucket_lengths(128).tolist() == list(range(8, 129, 8))
    assert bucket_lengths(384)[14:].tolist() == [
        *(120, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384)
    ]


def test_example_that_is_too_long_is_rejected(make_examples):
    examples = make_examples(9)
    with pytest.raises(ValueError, match="tokens; expected at most max_seq_length=16"):
        evaluation_batches(examples, BatchSettings(8, max_seq_length=16))


def test_less_than_a_tenth_of_mrpc_batches_is_padding(shared_data):
    vocab = load_vocab(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    tokenizer = BertTokenizer(vocab, do_lower_case=True)
    text = (shared_data / "glue" / "MRPC" / "train.tsv").read_text(encoding="utf-8-sig")
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    processor = ClassificationProcessor(tokenizer, ClassifierSettings(("0", "1"), pair=True))
    columns = [[row[column] for row in rows] for column in (3, 4)]
    examples = prepare(processor.preprocess, columns).examples
    steps = steps_per_epoch(len(examples), 16)
    tokens = real = 0
    for batch in arrays(training_batches(examples, BatchSettings(16, max_seq_length=128)), steps):
        weighed = batch["input_mask"] * batch["example_weights"][:, None]
        tokens, real = tokens + weighed.size, real + weighed.sum()
    assert real == examples.starts[-1]
    assert 1 - real / tokens < 0.10
