"""Examples, batches of them as a function of (seed, step), and outputs in their order."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bert.tasks.examples as examples_module
from keras_bert.checkpoints.hugging_face import open_model_directory
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertSpanLabeler, BertTokenClassifier
from keras_bert.tasks.examples import (
    Batcher,
    bucket_lengths,
    epoch_plan,
    make_predict_examples,
)
from keras_bert.training.objective import NO_OUTPUT
from keras_bert.training.strategy import make_strategy


def test_checksum_covers_all_fields_of_examples(make_examples):
    examples = make_examples(4)
    assert examples.sha256 == make_examples(4).sha256
    others = [
        replace(examples, input_ids=examples.input_ids + 1),
        replace(examples, segment_ids=examples.segment_ids + 1),
        replace(examples, starts=np.array([0, *(examples.starts[1:-1] + 1), examples.starts[-1]])),
        replace(examples, labels={"labels": 1 - examples.labels["labels"]}),
        replace(examples, labels={"positions": examples.labels["labels"]}),
        replace(examples, token_labels={"tags": examples.token_labels["tags"] + 1}),
        examples.take([1, 0, 2, 3]),
    ]
    assert len({examples.sha256, *(other.sha256 for other in others)}) == 8


# --- batches ---


def eights(seed=0, **changes):
    return Batcher(8, max_seq_length=64, seed=seed, **changes)


def arrays(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def test_every_example_is_read_once_per_epoch_and_last_batch_is_padded(make_examples):
    examples = make_examples(50)
    batches = arrays(eights(1).training(examples), 14)
    for epoch in (batches[:7], batches[7:]):
        index = np.concatenate([batch["example_index"] for batch in epoch])
        assert sorted(index[index >= 0]) == list(range(50))
        weights = np.concatenate([batch["example_weights"] for batch in epoch])
        np.testing.assert_array_equal(weights, index >= 0)
    assert [b["example_weights"].sum() for b in batches] == [8] * 6 + [2] + [8] * 6 + [2]


def test_batch_holds_its_examples_padded_to_a_bucket(make_examples):
    examples = make_examples(50)
    logits = np.random.default_rng(0).normal(size=[len(examples.input_ids), 3]).astype(np.float32)
    token_labels = {**examples.token_labels, "teacher_logits": logits}
    examples = replace(examples, token_labels=token_labels)
    columns = {"input_ids": (examples.input_ids, 49), "tags": (token_labels["tags"], -1)}
    # At padding, outputs of a teacher do not count.
    columns["teacher_logits"] = (logits, NO_OUTPUT)
    for batch in arrays(eights(1, pad_token_id=49).training(examples), 7):
        length = batch["input_ids"].shape[1]
        assert length in bucket_lengths(64)
        assert length - batch["input_mask"].sum(axis=1).max() < 8
        for row, index in enumerate(batch["example_index"]):
            if index < 0:
                continue
            start, end = examples.starts[index : index + 2]
            count = end - start
            assert batch["input_mask"][row].tolist() == [1] * count + [0] * (length - count)
            assert batch["labels"][row] == examples.labels["labels"][index]
            for name, (values, padding) in columns.items():
                assert batch[name].dtype == values.dtype
                assert np.array_equal(batch[name][row, :count], values[start:end])
                assert (batch[name][row, count:] == padding).all()


def test_order_differs_by_epoch_and_seed_and_dropout_seeds_are_unique(make_examples):
    examples = make_examples(64)
    one = epoch_plan(examples.lengths, 8, seed=0, epoch=0)
    assert not np.array_equal(one, epoch_plan(examples.lengths, 8, seed=0, epoch=1))
    assert not np.array_equal(one, epoch_plan(examples.lengths, 8, seed=1, epoch=0))
    first, second = arrays(eights().training(examples), 2)
    assert len({*first["dropout_seed"], *second["dropout_seed"]}) == 16


def test_evaluation_reads_every_example_once_longest_first(make_examples):
    examples = make_examples(21)
    batches = list(eights().evaluation(examples).as_numpy_iterator())
    index = np.concatenate([batch["example_index"] for batch in batches])
    assert sorted(index[index >= 0]) == list(range(21))
    lengths = examples.lengths[index[index >= 0]]
    assert (np.diff(lengths) <= 0).all()
    assert batches[-1]["example_weights"].tolist() == [1] * 5 + [0] * 3


def test_there_are_few_buckets_on_accelerators(monkeypatch):
    # XLA compiles the whole step for each length.
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["0"] * (kind == "TPU"))
    assert bucket_lengths(512).tolist() == [32, 64, 96, 128, 192, 256, 384, 512]


# --- outputs ---

FOURS = Batcher(4, max_seq_length=64)


def make_model(kind, checkpoint):
    config = open_model_directory(checkpoint).config
    keras.utils.set_random_seed(0)
    return {
        "examples": lambda: BertClassifier(config, 3),
        "tokens": lambda: BertTokenClassifier(config, 3),
        "spans": lambda: BertSpanLabeler(config),
    }[kind]()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "devices"), [("examples", 2), ("tokens", 1), ("spans", 2)])
def test_outputs_equal_those_of_each_example_alone(
    kind, devices, tiny_checkpoint, make_examples, mirrored
):
    strategy = mirrored if devices == 2 else make_strategy()
    with strategy.scope():
        model = make_model(kind, tiny_checkpoint)
    examples = make_examples(11)
    found = make_predict_examples(strategy, model, FOURS, jit_compile=False)(examples)
    assert set(found) == ({"start_logits", "end_logits"} if kind == "spans" else {"logits"})
    for name, values in found.items():
        for index, ids in enumerate(examples.rows(examples.input_ids)):
            row = np.asarray(ids)[None]
            inputs = {"input_ids": row, "input_mask": row * 0 + 1, "segment_ids": row * 0}
            alone = keras.ops.convert_to_numpy(model(inputs)[name])[0]
            mine = values[index]
            if kind != "examples":
                mine = values[examples.starts[index] : examples.starts[index + 1]]
            np.testing.assert_allclose(mine, alone, atol=1e-5)


@pytest.mark.parametrize(("kind", "name"), [("examples", "logits"), ("spans", "start_logits")])
def test_non_finite_outputs_are_rejected_and_counted(kind, name, tiny_checkpoint, make_examples):
    model, examples = make_model(kind, tiny_checkpoint), make_examples(11)
    embeddings = model.encoder.embeddings.word_embeddings
    values = keras.ops.convert_to_numpy(embeddings).copy()
    values[7] = np.nan
    embeddings.assign(values)
    broken = sum(7 in ids for ids in examples.rows(examples.input_ids))
    assert 0 < broken < 11
    run = make_predict_examples(make_strategy(), model, FOURS, jit_compile=False)
    message = rf"the model's {name} are not finite for {broken} of 11 examples; no result is saved"
    with pytest.raises(InputError, match=message):
        run(examples)


def test_non_finite_outputs_of_another_worker_are_rejected(
    tiny_checkpoint, make_examples, monkeypatch
):
    """All workers must fail with the same error."""
    monkeypatch.setattr(examples_module, "all_sum", lambda strategy: lambda values: values + np.inf)
    model = make_model("examples", tiny_checkpoint)
    run = make_predict_examples(make_strategy(), model, FOURS, jit_compile=False)
    with pytest.raises(InputError, match="logits are not finite for 3 of 3 examples"):
        run(make_examples(3))
