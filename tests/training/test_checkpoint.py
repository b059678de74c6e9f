"""Checkpoints are atomic, the newest intact one is restored, and other models are rejected."""

import json
import threading

import keras
import numpy as np
import pytest
from keras.ops import convert_to_numpy
from safetensors.numpy import load_file

from keras_bert.errors import InputError
from keras_bert.training import checkpoint
from keras_bert.training.checkpoint import CheckpointWriter, list_checkpoints, restore_latest
from keras_bert.training.optimizers import AdamWeightDecay


def make(units=3, value=0.0, **settings):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units, name="dense")], name="m")
    model.set_weights([np.full(v.shape, value) for v in model.weights])
    optimizer = AdamWeightDecay(0.1, **settings)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def save(directory, step, value):
    model, optimizer = make(value=value)
    optimizer.iterations.assign(step)
    writer = CheckpointWriter(directory)
    writer.save(step, model, optimizer)
    writer.wait()
    return list_checkpoints(directory)[-1]


def test_bfloat16_moments_are_restored_and_continue_bit_identically(tmp_path):
    gradients = [np.full((2, 3), 0.3, "float32"), np.full(3, -0.7, "float32")]

    def resume(model, optimizer, steps):
        for _ in range(steps):
            optimizer.apply(gradients)
        return [convert_to_numpy(v).tobytes() for v in model.variables + optimizer.variables]

    model, optimizer = make(value=1.0, state_dtype="bfloat16")
    resume(model, optimizer, 3)
    writer = CheckpointWriter(tmp_path)
    writer.save(3, model, optimizer)
    writer.close()
    saved = load_file(tmp_path / "step-00000003" / "optimizer.safetensors")
    assert [v.dtype.name for v in saved.values()].count("bfloat16") == 4
    again = make(state_dtype="bfloat16")
    assert restore_latest(tmp_path, *again) == 3
    assert resume(*again, 4) == resume(model, optimizer, 4)


def test_damaged_later_checkpoint_does_not_evict_the_one_just_saved(tmp_path):
    for step in (1, 5):
        save(tmp_path, step, step)
    (tmp_path / "step-00000005" / "state.json").write_text("{")
    writer = CheckpointWriter(tmp_path, max_to_keep=1)
    writer.save(3, *make(value=3.0))
    writer.wait()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003"]


@pytest.mark.parametrize(
    "damage", ["truncated", "flip", "no file", "no state", "step", "null", '{"step": 2}']
)
def test_damaged_newest_checkpoint_falls_back_to_the_previous_one(tmp_path, damage):
    save(tmp_path, 1, 1.0)
    newest = save(tmp_path, 2, 2.0)
    weights = newest / "model.safetensors"
    content = bytearray(weights.read_bytes())
    if damage == "truncated":
        weights.write_bytes(content[:-5])
    elif damage == "flip":
        content[-1] ^= 1
        weights.write_bytes(content)
    elif damage.startswith("no "):
        (newest / "state.json" if damage == "no state" else weights).unlink()
    else:
        state = newest / "state.json"
        # Another step than in the name of the folder, while all files are intact.
        content = json.dumps(json.loads(state.read_text()) | {"step": 3})
        state.write_text(content if damage == "step" else damage)
    model, optimizer = make()
    assert restore_latest(tmp_path, model, optimizer) == 1
    assert model.get_weights()[0][0, 0] == 1.0
    assert restore_latest(tmp_path / "absent", *make()) == 0


def test_only_damaged_checkpoints_raise_an_error(tmp_path):
    (save(tmp_path, 1, 1.0) / "state.json").write_text("{")
    with pytest.raises(InputError, match="all 1 checkpoints are damaged"):
        restore_latest(tmp_path, *make())


def test_checkpoint_of_another_model_is_rejected_with_the_difference(tmp_path):
    save(tmp_path, 1, 1.0)
    with pytest.raises(InputError, match=r"m/dense/kernel \(2, 4\)"):
        restore_latest(tmp_path, *make(units=4))


def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The checkpoint holds the values at the time of the save, even if variables change later."""
    may_write, write = threading.Event(), checkpoint.save_file

    def slow(values, path):
        assert may_write.wait(10)
        write(values, path)

    monkeypatch.setattr(checkpoint, "save_file", slow)
    model, optimizer = make(value=1.0)
    writer = CheckpointWriter(tmp_path)
    writer.save(1, model, optimizer)
    model.set_weights([np.full(v.shape, 2.0) for v in model.weights])
    writer.check()
    assert list_checkpoints(tmp_path) == []
    may_write.set()
    writer.wait()
    restored, optimizer = make()
    assert restore_latest(tmp_path, restored, optimizer) == 1
    assert all((w == 1.0).all() for w in restored.get_weights())
