"""Tests end-to-end pre-training for each objective, and incompatible settings."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.model_directory import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.inputs import find_inputs
from keras_bert.pretraining.run import pretrain
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.objective import TrainingRun, TrainingSettings
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


STEPS = 30


@pytest.fixture(scope="module")
def settings(tmp_path_factory, write_dataset):
    """Returns settings for statically masked records with next sentences."""
    folder = tmp_path_factory.mktemp("settings")
    CONFIG.to_json(folder / "config.json")
    return PretrainingSettings(
        input_file=str(write_dataset(folder / "records")),
        bert_config=str(folder / "config.json"),
        num_warmup_steps=0,
        learning_rate=1e-2,
        eval_batch_size=32,
    )


def run(settings, output_dir, steps=STEPS):
    training = TrainingSettings(
        num_train_steps=steps,
        train_batch_size=8,
        save_checkpoints_steps=STEPS // 2,
        jit_compile=False,
    )
    return pretrain(settings, TrainingRun(training, make_strategy(), output_dir))


@pytest.fixture(scope="module")
def left_to_right(settings, tmp_path_factory):
    """Returns the folder of a finished left-to-right run."""
    output_dir = tmp_path_factory.mktemp("ltr") / "out"
    run(replace(settings, objective="ltr"), output_dir)
    return output_dir


def check_a_run_without_next_sentences(settings, output_dir, objective, prediction):
    results = json.loads((output_dir / "results.json").read_text())
    assert results.keys() == {
        *("step", "loss", f"{prediction}_loss", f"{prediction}_accuracy"),
        *(f"unigram_{prediction}_loss", f"unigram_{prediction}_accuracy"),
    }
    assert results["loss"] == results[f"{prediction}_loss"]
    record = json.loads((output_dir / "run.json").read_text())["settings"]
    assert record["objective"] == objective
    config = json.loads((output_dir / "model" / "config.json").read_text())
    assert config.get("is_decoder", False) == (objective == "ltr")
    # The parts without a loss keep their initial weights, for the task that needs them.
    keras.utils.set_random_seed(settings.random_seed)
    save_model_directory(
        output_dir.parent / "untrained", BertPretrainer(CONFIG), ModelDescription(CONFIG)
    )
    untrained = load_file(output_dir.parent / "untrained" / "model.safetensors")
    for name, value in load_file(output_dir / "model" / "model.safetensors").items():
        assert np.array_equal(value, untrained[name]) == name.startswith(UNPREDICTED), name


@pytest.mark.slow
def test_masked_lm_alone_trains_on_records_with_next_sentences(settings, tmp_path):
    run(replace(settings, objective="mlm"), tmp_path / "out", steps=2)
    check_a_run_without_next_sentences(settings, tmp_path / "out", "mlm", "masked_lm")


def test_left_to_right_trains_on_records_with_next_sentences(settings, left_to_right):
    check_a_run_without_next_sentences(settings, left_to_right, "ltr", "next_token")


def test_left_to_right_loss_is_below_the_unigram_baseline(left_to_right):
    results = json.loads((left_to_right / "results.json").read_text())
    assert results["next_token_loss"] < 0.95 * results["unigram_next_token_loss"]


@pytest.mark.slow
def test_left_to_right_run_resumes_with_identical_weights(
    settings, left_to_right, tmp_path, monkeypatch
):
    settings = replace(settings, objective="ltr")

    class Killed(BaseException):
        """An exception that no code catches."""

    def killed_after(*given):
        saved(*given)
        raise Killed

    saved = CheckpointWriter.save
    monkeypatch.setattr(CheckpointWriter, "save", killed_after)
    with pytest.raises(Killed):
        run(settings, tmp_path)
    monkeypatch.undo()
    with pytest.raises(InputError, match='objective was "ltr" and is now "mlm"'):
        run(replace(settings, objective="mlm"), tmp_path)
    run(settings, tmp_path)
    for name in ("model/model.safetensors", "results.json"):
        assert (tmp_path / name).read_bytes() == (left_to_right / name).read_bytes()


@pytest.mark.parametrize(
    ("kind", "objective"), [({}, "mlm_nsp"), ({"next_sentence": "none"}, "mlm")]
)
def test_default_objective_follows_the_records(settings, tmp_path, write_dataset, kind, objective):
    data = write_dataset(tmp_path / "other", documents=8, **kind)
    assert find_inputs(replace(settings, input_file=str(data)), 3).objective == objective


def test_missing_next_sentences_are_rejected(settings, tmp_path, write_dataset):
    data = write_dataset(tmp_path / "other", documents=8, next_sentence="none")
    with pytest.raises(InputError, match=r"^--objective=mlm_nsp: .*next_sentence none; expected"):
        find_inputs(replace(settings, input_file=str(data), objective="mlm_nsp"), 3)


@pytest.mark.parametrize("flag", ["bert_config", "init_checkpoint"])
def test_left_to_right_model_needs_the_left_to_right_objective(settings, tmp_path, flag):
    causal = replace(CONFIG, is_decoder=True)
    if flag == "bert_config":
        causal.to_json(tmp_path / "config.json")
        given = replace(settings, bert_config=str(tmp_path / "config.json"))
    else:
        save_model_directory(tmp_path / "start", BertPretrainer(causal), ModelDescription(causal))
        given = replace(settings, bert_config="", init_checkpoint=str(tmp_path / "start"))
    for objective in (None, "mlm"):
        with pytest.raises(InputError, match=rf"^--{flag}=.* left-to-right .*--objective=ltr, got"):
            find_inputs(replace(given, objective=objective), 3)
    assert find_inputs(replace(given, objective="ltr"), 3).config == causal


def test_bidirectional_model_is_trained_but_not_evaluated_left_to_right(settings, tmp_path):
    save_model_directory(tmp_path / "start", BertPretrainer(CONFIG), ModelDescription(CONFIG))
    given = replace(settings, init_checkpoint=str(tmp_path / "start"), objective="ltr")
    assert find_inputs(given, 3).config == replace(CONFIG, is_decoder=True)
    with pytest.raises(
        InputError, match=r"start is a bidirectional model; expected a left-to-right"
    ):
        find_inputs(replace(given, do_train=False), 3)
