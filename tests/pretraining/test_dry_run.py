"""The estimate of --dry_run: parameters, operations and bytes equal those of the model."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.recipe import Phase
from keras_bert.pretraining.run import dry_run, estimate
from keras_bert.pretraining.settings import PretrainingSettings
from keras_bert.training.objective import TrainingSettings


def run_of(config="base", length=128, predictions=20, **changes):
    """Returns a phase; `changes` are fields of its settings or of its training settings."""
    shape = {"max_seq_length": length, "max_predictions_per_seq": predictions}
    settings = PretrainingSettings("", bert_config=str(config), **shape)
    training = TrainingSettings(num_train_steps=10, train_batch_size=8)
    of_training = {name: v for name, v in changes.items() if hasattr(training, name)}
    of_settings = {name: v for name, v in changes.items() if name not in of_training}
    return Phase(replace(settings, **of_settings), replace(training, **of_training))


def cost(*args, devices=1, **changes):
    return estimate(run_of(*args, **changes), None, devices)


def test_parameter_count_equals_that_of_the_model(tmp_path):
    config = BertConfig(50, 16, 3, 2, 24)
    config.to_json(tmp_path / "config.json")
    weights = BertPretrainer(config).trainable_variables
    expected = sum(int(np.prod(v.shape)) for v in weights)
    assert cost(tmp_path / "config.json")["parameters"] == expected


def test_flop_are_three_times_those_of_the_forward_pass():
    """test_run_pretraining.py compares the FLOPs of a row with the sizes of all products."""
    total, found = 3 * BertConfig.from_json("base").flops_per_row(128, 20), cost()
    assert (found["flop_per_step"], found["flop"]) == (8 * total, 80 * total)
    assert found["tokens"] == 80 * 128
    all_predicted = cost(predictions=128)["flop"]
    assert cost(objective="ltr")["flop"] == all_predicted


def test_memory_scales_with_model_batch_and_precision():
    plain = cost()
    assert plain["weights"] == plain["gradients"] == 4 * plain["parameters"]
    assert plain["optimizer"] == 8 * plain["parameters"]
    assert cost(train_batch_size=16)["activations"] == 2 * plain["activations"]
    assert cost(train_batch_size=16, devices=2)["activations"] == plain["activations"]
    accumulated = cost(train_batch_size=16, gradient_accumulation_steps=2)
    assert accumulated["activations"] == plain["activations"]
    assert accumulated["gradients"] == 2 * plain["gradients"]
    assert cost(optimizer_state_dtype="bfloat16")["optimizer"] == plain["optimizer"] // 2
    half = cost(mixed_precision="bfloat16")
    assert half["activations"] < plain["activations"]
    assert half["weights"] == 6 * plain["parameters"]  # with their bfloat16 copies
    recomputed = cost(length=512, predictions=77, gradient_checkpointing=True)
    assert recomputed["activations"] < cost(length=512, predictions=77)["activations"] / 3


def test_too_large_length_is_rejected_before_anything_is_printed():
    longer = replace(run_of(length=513), title="own.toml: phase 2")
    message = r"own\.toml: phase 2: --max_seq_length=513, but .* max_position_embeddings 512"
    with pytest.raises(InputError, match=message):
        dry_run([run_of(), longer], tf.distribute.get_strategy())
