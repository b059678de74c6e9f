"""Tests end-to-end pre-training on records of every kind, and on one or more devices."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.model_directory import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.batches import RecordSource, training_batches
from keras_bert.pretraining.objective import pretraining_objective
from keras_bert.pretraining.records import find_records
from keras_bert.pretraining.run import pretrain
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.objective import TrainingRun, TrainingSettings, TrainState
from keras_bert.training.optimizers import AdamWeightDecay
from keras_bert.training.step import make_train_steps
from keras_bert.training.strategy import make_strategy

CONFIG = BertConfig(
    vocab_size=48,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
)
UNPREDICTED = ("bert.pooler.", "cls.seq_relationship.")


def run(tmp_path, records, held_out=None, out="out", steps=3, optimizer="adamw"):
    CONFIG.to_json(tmp_path / "config.json")
    training = TrainingSettings(
        num_train_steps=steps, train_batch_size=4, save_checkpoints_steps=2, jit_compile=False
    )
    settings = PretrainingSettings(
        input_file=str(records),
        eval_file=str(held_out or records),
        bert_config=str(tmp_path / "config.json"),
        num_warmup_steps=0,
        learning_rate=1e-2,
        eval_batch_size=4,
        optimizer=optimizer,
    )
    return pretrain(settings, TrainingRun(training, make_strategy(), tmp_path / out))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        {"dynamic": True, "pack": True},
        {"dynamic": True, "ngram": 3, "do_whole_word_mask": True},
        {"next_sentence": "order", "pack": True},
    ],
    ids=lambda kind: ", ".join(kind),
)
def test_run_trains_and_evaluates_on_records_of_any_kind(tmp_path, write_dataset, kind):
    results = run(tmp_path, write_dataset(tmp_path / "records", **kind))
    assert results["step"] == 3
    assert results.keys() >= {"next_sentence_accuracy", "unigram_next_sentence_accuracy"}
    assert results["loss"] == results["masked_lm_loss"] + results["next_sentence_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "pack"), [("adamw", True), ("lamb", False)])
def test_metrics_without_next_sentences_do_not_include_them(
    tmp_path, write_dataset, pack, optimizer
):
    records = write_dataset(tmp_path / "records", next_sentence="none", pack=pack)
    results = run(tmp_path, records, optimizer=optimizer)
    assert not [name for name in results if "next_sentence" in name]
    assert results["loss"] == results["masked_lm_loss"]
    lines = (tmp_path / "out" / "metrics.jsonl").read_text()
    assert "masked_lm_loss" in lines
    assert "next_sentence" not in lines
    # The parts without a loss keep their initial weights, for the task that needs them.
    keras.utils.set_random_seed(PretrainingSettings.random_seed)
    save_model_directory(tmp_path / "untrained", BertPretrainer(CONFIG), ModelDescription(CONFIG))
    untrained = load_file(tmp_path / "untrained" / "model.safetensors")
    for name, value in load_file(tmp_path / "out" / "model" / "model.safetensors").items():
        assert np.array_equal(value, untrained[name]) == name.startswith(UNPREDICTED), name


@pytest.mark.slow
def test_held_out_records_may_differ_in_packing_and_masking(tmp_path, write_dataset):
    records = write_dataset(tmp_path / "records", dynamic=True, pack=True)
    held_out = write_dataset(tmp_path / "held_out", corpus_seed=1)
    assert run(tmp_path, records, held_out)["next_sentence_accuracy"] > 0


def test_held_out_records_with_another_next_sentence_are_rejected(tmp_path, write_dataset):
    records = write_dataset(tmp_path / "records")
    held_out = write_dataset(tmp_path / "held_out", next_sentence="order")
    with pytest.raises(InputError, match=r"held_out.* next_sentence order; expected random"):
        run(tmp_path, records, held_out)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_run_with_dynamic_masks_resumes_with_identical_weights(
    tmp_path, write_dataset, monkeypatch
):
    records = write_dataset(tmp_path / "records", dynamic=True, pack=True)
    run(tmp_path, records, out="uninterrupted", steps=5)

    class Killed(BaseException):
        """An exception that no code catches."""

    def killed_after(*given):
        saved(*given)
        if given[1] == 2:
            raise Killed

    saved = CheckpointWriter.save
    monkeypatch.setattr(CheckpointWriter, "save", killed_after)
    with pytest.raises(Killed):
        run(tmp_path, records, out="killed", steps=5)
    monkeypatch.undo()
    run(tmp_path, records, out="killed", steps=5)
    uninterrupted, killed = (
        (tmp_path / out / "model" / "model.safetensors").read_bytes()
        for out in ("uninterrupted", "killed")
    )
    assert uninterrupted == killed
    results = [
        json.loads((tmp_path / o / "results.json").read_text()) for o in ("uninterrupted", "killed")
    ]
    assert results[0] == results[1]


@pytest.mark.slow
def test_packed_rows_train_equally_on_two_devices_and_in_micro_batches(
    tmp_path, write_dataset, mirrored
):
    data = find_records(str(write_dataset(tmp_path / "records", dynamic=True, pack=True)))

    def train(strategy, **settings):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            model = BertPretrainer(CONFIG)
            optimizer = AdamWeightDecay(1e-3)
            optimizer.build(model.trainable_variables)
        state = TrainState(model, optimizer, pretraining_objective())
        settings = TrainingSettings(4, 8, jit_compile=False, **settings)
        steps = make_train_steps(strategy, state, settings)
        batches = training_batches(RecordSource(data, CONFIG.vocab_size), 8, seed=0)
        metrics = steps(iter(strategy.experimental_distribute_dataset(batches)), tf.constant(4))
        weights = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
        return weights, metrics.numpy()

    one = train(make_strategy())
    for other in (train(mirrored), train(make_strategy(), gradient_accumulation_steps=4)):
        for a, b in zip(one[1], other[1], strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5)
        for a, b in zip(one[0], other[0], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
