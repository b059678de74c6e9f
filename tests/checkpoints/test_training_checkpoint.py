"""The checkpoints that a run saves while it trains open like its model, with earlier weights."""

import numpy as np
import pytest

from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertPretrainer
from keras_bert.text.settings import TokenizerSettings
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.optimizers import AdamWeightDecay


@pytest.fixture
def run(tiny, tmp_path):
    """Returns the folder of a finished run, and {step: its weights} of two checkpoints."""
    model, weights = tiny.make("pretrainer"), {}
    optimizer = AdamWeightDecay(0.1)
    optimizer.build(model.trainable_variables)
    writer = CheckpointWriter(tmp_path / "checkpoints")
    for step in (5, 10):
        weights[step] = [np.array(weight) for weight in model.weights]
        writer.save(step, model, optimizer)
        writer.wait()
        for variable in model.weights:
            variable.assign(variable + 1.0)
    writer.close()
    description = ModelDescription(tiny.config, tiny.vocab, TokenizerSettings(False))
    save_model_directory(tmp_path / "model", model, description)
    return tmp_path, weights


@pytest.mark.parametrize("step", [5, 10])
def test_weights_of_the_step_are_loaded(run, tiny, step):
    folder, weights = run
    checkpoint = open_checkpoint(folder / "checkpoints" / f"step-{step:08}")
    assert checkpoint.kind == "a training checkpoint"
    assert (checkpoint.config, checkpoint.vocab) == (tiny.config, tiny.vocab)
    assert not checkpoint.do_lower_case
    model = BertPretrainer(checkpoint.config)
    report = checkpoint.load_into(model)
    # The file also has the states of the seed generators, which are not weights.
    assert len(model.variables) > len(model.weights)
    assert (report.new, report.ignored) == ((), ())
    for found, expected in zip(model.weights, weights[step], strict=True):
        assert np.array_equal(found, expected)


def test_heads_of_other_tasks_are_newly_initialized(run):
    folder, weights = run
    checkpoint = open_checkpoint(folder / "checkpoints" / "step-00000005")
    model = BertClassifier(checkpoint.config, 2)
    report = checkpoint.load_into(model)
    assert report.new == ("classifier/kernel", "classifier/bias")
    assert "masked_lm/output_bias" in report.ignored
    assert np.array_equal(model.weights[0], weights[5][0])


def test_training_checkpoint_is_converted(run, tmp_path):
    folder, weights = run
    convert(folder / "checkpoints" / "step-00000010", tmp_path / "converted")
    model = BertPretrainer(open_checkpoint(tmp_path / "converted").config)
    open_checkpoint(tmp_path / "converted").load_into(model)
    for found, expected in zip(model.weights, weights[10], strict=True):
        assert np.array_equal(found, expected)


def test_unfinished_run_is_rejected(run):
    folder, _ = run
    (folder / "model").rename(folder / "elsewhere")
    with pytest.raises(InputError, match=r"found no .*model, which has .*of a finished run"):
        open_checkpoint(folder / "checkpoints" / "step-00000005")


def test_damaged_weights_are_rejected(run):
    folder, _ = run
    path = folder / "checkpoints" / "step-00000005"
    checkpoint = open_checkpoint(path)
    file = path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"does not have the checksum in state\.json"):
        checkpoint.load_into(BertPretrainer(checkpoint.config))
