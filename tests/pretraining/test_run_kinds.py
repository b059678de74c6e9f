"""Tests end-to-end pre-training on records of every kind, for each objective."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.inputs import find_inputs
from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.pretraining.recipe import Phase
from keras_bert.pretraining.records import find_records
from keras_bert.pretraining.run import pretrain, unigram_baseline
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.training.objective import TrainingSettings
from keras_bert.training.strategy import make_strategy
from tests.training.reference import largest_difference
from tests.training.test_step import assert_close, train

CONFIG = BertConfig(48, 16, 1, 2, 16, max_position_embeddings=32)
UNPREDICTED = ("bert.pooler.", "cls.seq_relationship.")


def make_settings(folder, records, **changes):
    CONFIG.to_json(folder / "config.json")
    settings = PretrainingSettings(
        input_file=str(records),
        eval_file=str(records),
        bert_config=str(folder / "config.json"),
        num_warmup_steps=0,
        learning_rate=1e-2,
        eval_batch_size=4,
    )
    return replace(settings, **changes)


def run(tmp_path, records, steps=3, **changes):
    training = TrainingSettings(
        num_train_steps=steps,
        train_batch_size=4,
        save_checkpoints_steps=max(2, steps // 2),
        jit_compile=False,
    )
    phase = Phase(make_settings(tmp_path, records, **changes), training)
    return pretrain([phase], make_strategy(), tmp_path / "out")


@pytest.mark.slow
def test_packed_rows_train_equally_on_two_devices_and_in_micro_batches(
    tmp_path, write_dataset, mirrored
):
    data = find_records(str(write_dataset(tmp_path / "records", dynamic=True, pack=True)))
    one = train(data)
    for other in (train(data, mirrored), train(data, gradient_accumulation_steps=4)):
        assert largest_difference(other[0], one[0]) < 1e-6
        assert_close(other[1], one[1], rtol=1e-5)


@pytest.mark.slow
def test_run_trains_and_evaluates_on_packed_pairs_in_order(tmp_path, write_dataset):
    results = run(tmp_path, write_dataset(tmp_path / "records", next_sentence="order", pack=True))
    assert results["step"] == 3
    assert results.keys() >= {"next_sentence_accuracy", "unigram_next_sentence_accuracy"}
    assert results["loss"] == results["masked_lm_loss"] + results["next_sentence_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes", "prediction"),
    [
        ({"next_sentence": "none", "pack": True}, {"optimizer": "lamb"}, "masked_lm"),
        ({}, {"objective": "mlm"}, "masked_lm"),
        ({}, {"objective": "ltr"}, "next_token"),
    ],
    ids=str,
)
def test_run_without_next_sentences(tmp_path, write_dataset, kind, changes, prediction):
    steps = 30 if prediction == "next_token" else 3
    results = run(tmp_path, write_dataset(tmp_path / "records", **kind), steps=steps, **changes)
    assert results.keys() == {
        *("step", "loss", f"{prediction}_loss", f"{prediction}_accuracy"),
        *(f"unigram_{prediction}_loss", f"unigram_{prediction}_accuracy"),
    }
    assert results["loss"] == results[f"{prediction}_loss"]
    if prediction == "next_token":
        assert results["loss"] < 0.95 * results["unigram_next_token_loss"]
    out = tmp_path / "out"
    assert "next_sentence" not in (out / "metrics.jsonl").read_text()
    record = json.loads((out / "run.json").read_text())["settings"]
    assert record["objective"] == changes.get("objective", "mlm")
    config = json.loads((out / "model" / "config.json").read_text())
    assert config.get("is_decoder", False) == (prediction == "next_token")
    # The parts without a loss keep their initial weights, for the task that needs them.
    keras.utils.set_random_seed(PretrainingSettings.random_seed)
    save_model_directory(tmp_path / "untrained", BertPretrainer(CONFIG))
    untrained = load_file(tmp_path / "untrained" / "model.safetensors")
    for name, value in load_file(out / "model" / "model.safetensors").items():
        assert np.array_equal(value, untrained[name]) == name.startswith(UNPREDICTED), name


# --- objectives ---


@pytest.fixture
def settings(tmp_path, write_dataset):
    return make_settings(tmp_path, write_dataset(tmp_path / "records", documents=8), eval_file="")


def test_missing_next_sentences_are_rejected(settings, tmp_path, write_dataset):
    data = write_dataset(tmp_path / "other", documents=8, next_sentence="none")
    with pytest.raises(InputError, match=r"^--objective=mlm_nsp: .*next_sentence none; expected"):
        find_inputs(replace(settings, input_file=str(data), objective="mlm_nsp"))


@pytest.mark.parametrize("flag", ["bert_config", "init_checkpoint"])
def test_left_to_right_model_needs_the_left_to_right_objective(settings, tmp_path, flag):
    causal = replace(CONFIG, is_decoder=True)
    if flag == "bert_config":
        causal.to_json(tmp_path / "config.json")
        changed = replace(settings, bert_config=str(tmp_path / "config.json"))
    else:
        save_model_directory(tmp_path / "start", BertPretrainer(causal))
        changed = replace(settings, bert_config="", init_checkpoint=str(tmp_path / "start"))
    for objective in (None, "mlm"):
        with pytest.raises(InputError, match=rf"^--{flag}=.* left-to-right .*--objective=ltr, got"):
            find_inputs(replace(changed, objective=objective))
    assert find_inputs(replace(changed, objective="ltr")).config == causal


def test_bidirectional_model_is_trained_but_not_evaluated_left_to_right(settings, tmp_path):
    save_model_directory(tmp_path / "start", BertPretrainer(CONFIG))
    changed = replace(settings, init_checkpoint=str(tmp_path / "start"), objective="ltr")
    assert find_inputs(changed).config == replace(CONFIG, is_decoder=True)
    with pytest.raises(
        InputError, match=r"start is a bidirectional model; expected a left-to-right"
    ):
        find_inputs(replace(changed, do_train=False))


# --- metrics and the baseline ---


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
