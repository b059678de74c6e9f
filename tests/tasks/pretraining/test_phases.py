"""Phases one after the other: what a later one starts from, and phases that do not fit."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.tasks.pretraining.dry_run import dry_run
from keras_bert.tasks.pretraining.inputs import PretrainingSettings
from keras_bert.tasks.pretraining.phases import PhaseRun, pretrain_phases
from keras_bert.tasks.pretraining.recipe import Phase
from keras_bert.training.loop import TrainingSettings
from keras_bert.training.strategy import make_strategy

CONFIG = BertConfig(
    vocab_size=50,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=8,
    max_position_embeddings=32,
)


@pytest.fixture
def config_file(tmp_path):
    CONFIG.to_json(tmp_path / "config.json")
    return str(tmp_path / "config.json")


@pytest.fixture
def records(tmp_path, write_records):
    return [
        str(write_records(tmp_path / f"{length}.tfrecord", 12, length=length))
        for length in (16, 32)
    ]


def phase_run(number, records, config_file, continue_optimizer=False, data=None, **settings):
    flags = {"input_file": records, "num_train_steps": 3, "max_seq_length": 0}
    return PhaseRun(
        Phase("own.toml", number, flags, data or {}, continue_optimizer),
        PretrainingSettings(
            records, bert_config=config_file, eval_batch_size=4, num_warmup_steps=0, **settings
        ),
        TrainingSettings(num_train_steps=3, train_batch_size=4, jit_compile=False),
        {"number": number},
    )


def run(tmp_path, *runs):
    return pretrain_phases(runs, make_strategy(), tmp_path / "out")


def checkpoint(folder, step):
    return load_file(folder / "checkpoints" / f"step-{step:08d}" / "optimizer.safetensors")


def updates(folder):
    """Returns how many updates the optimizer of a finished phase has seen."""
    (count,) = (v for k, v in checkpoint(folder, 3).items() if k.endswith("iteration"))
    return int(count)


def test_a_phase_starts_with_the_weights_of_the_one_before_and_a_fresh_optimizer(
    tmp_path, records, config_file
):
    second = phase_run(2, records[1], config_file, learning_rate=0.0)
    run(tmp_path, phase_run(1, records[0], config_file), second)
    # At learning rate 0 the second leaves the first one's weights as they are.
    one, two = (
        load_file(tmp_path / "out" / name / "model" / "model.safetensors")
        for name in ("phase-1", "phase-2")
    )
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert updates(tmp_path / "out" / "phase-2") == 3


def test_a_phase_that_goes_on_keeps_the_optimizer_state(tmp_path, records, config_file):
    second = phase_run(2, records[1], config_file, continue_optimizer=True)
    run(tmp_path, phase_run(1, records[0], config_file), second)
    assert updates(tmp_path / "out" / "phase-2") == 6


def test_dropout_of_training_is_not_that_of_the_model_that_is_saved(tmp_path, records, config_file):
    plain, none = (
        pretrain_phases(
            [phase_run(1, records[0], config_file, dropout_prob=dropout)],
            make_strategy(),
            tmp_path / name,
        )
        for name, dropout in (("plain", None), ("none", 0.0))
    )
    assert plain["loss"] != none["loss"]
    saved = json.loads((tmp_path / "none" / "model" / "config.json").read_text())
    assert saved["hidden_dropout_prob"] == saved["attention_probs_dropout_prob"] == 0.1


def test_records_made_otherwise_than_the_recipe_says_are_refused(
    tmp_path, write_dataset, config_file
):
    folder = write_dataset(tmp_path / "records")
    said = phase_run(1, str(folder), "tiny", data={"masked_lm_prob": 0.3})
    message = r"own\.toml: phase 1: data: masked_lm_prob is 0\.3, but .* was made with 0\.15"
    with pytest.raises(InputError, match=message):
        run(tmp_path, said)
    assert not (tmp_path / "out").exists()


def test_a_later_phase_that_does_not_fit_is_found_before_the_first_begins(
    tmp_path, write_records, records, config_file
):
    too_long = str(write_records(tmp_path / "64.tfrecord", 12, length=64))
    with pytest.raises(InputError, match=r"own\.toml: phase 2: .*max_position_embeddings 32"):
        run(
            tmp_path,
            phase_run(1, records[0], config_file),
            phase_run(2, too_long, config_file),
        )
    assert not (tmp_path / "out").exists()


def test_a_changed_phase_is_refused_with_the_difference(tmp_path, records, config_file):
    runs = [phase_run(number, records[number - 1], config_file) for number in (1, 2)]
    run(tmp_path, *runs)
    runs[0] = replace(runs[0], record={"number": 7})
    with pytest.raises(InputError, match=r'phase-1 was \{"number": 1.* and is now \{"number": 7'):
        run(tmp_path, *runs)


def test_the_estimated_memory_is_what_a_step_takes_within_a_factor_of_two(tmp_path, write_records):
    BertConfig(
        vocab_size=8000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    ).to_json(tmp_path / "config.json")
    one = phase_run(
        1, "", str(tmp_path / "config.json"), max_seq_length=256, max_predictions_per_seq=40
    )
    # The estimate is of compiled chains, which keep nothing of what lies within.
    training = replace(one.training, train_batch_size=16, jit_compile=True)
    text = "\n".join(dry_run([replace(one, training=training)], make_strategy()))
    (line,) = (line for line in text.splitlines() if line.startswith("  measured"))
    used, estimated = (float(size) for size in re.findall(r"([\d.]+) GB", line))
    assert 0.8 < used / estimated < 2, text
