"""float16: all devices skip a step that overflows, and the run continues reproducibly."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.training.loop import train
from keras_bert.training.objective import Objective, TrainingRun, TrainingSettings, TrainState
from keras_bert.training.optimizers import AdamWeightDecay, LossScale
from keras_bert.training.step import make_train_steps
from keras_bert.training.strategy import make_strategy

ORDINARY = [[1.0, 2.0], [0.5, -1.0], [2.0, 0.0], [-1.0, 1.0]]
# The gradient is the sum of the rows. Times 2^15, the last row exceeds the float32 range.
OVERFLOW = [*ORDINARY[:3], [3e37, 0.0]]


def batches_of(steps):
    """Returns a dataset of the given batches that repeats the last one indefinitely."""
    rows = tf.data.Dataset.from_tensor_slices(np.array(steps, "float32"))
    rows = rows.concatenate(rows.skip(len(steps) - 1).repeat())
    return rows.map(
        lambda x: {
            "x": x,
            "input_mask": tf.ones([4, 2], tf.int32),
            "example_weights": tf.ones([4]),
        }
    )


class OutputSum(Objective):
    def weights(self, batch):
        return {"loss": tf.reduce_sum(batch["example_weights"])}

    def sums(self, model, batch, training):
        return {"loss": tf.reduce_sum(model(batch["x"]))}


TASK = OutputSum()


def make(strategy, growth_steps=2000):
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="d")], name="m")
        model.set_weights([np.array([[0.5], [0.25]]), np.array([0.125])])
        optimizer = AdamWeightDecay(0.1)
        optimizer.build(model.trainable_variables)
        return model, optimizer, LossScale(optimizer, growth_steps=growth_steps)


def run_steps(strategy, steps):
    model, optimizer, loss_scale = make(strategy)
    state = TrainState(model, optimizer, TASK, loss_scale)
    settings = TrainingSettings(len(steps), 4, jit_compile=False)
    train_steps = make_train_steps(strategy, state, settings)
    iterator = iter(strategy.experimental_distribute_dataset(batches_of(steps)))
    return model, optimizer, train_steps(iterator, tf.constant(len(steps))).numpy()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_overflow_on_one_device_skips_the_step_on_all_devices(devices, mirrored):
    strategy = mirrored if devices == 2 else make_strategy()
    model, optimizer, metrics = run_steps(strategy, [ORDINARY, OVERFLOW, ORDINARY])
    assert metrics.loss_scale.tolist() == [2.0**15, 2.0**15, 2.0**14]
    assert np.isfinite(metrics.gradient_norm).tolist() == [True, False, True]
    assert int(optimizer.iterations.numpy()) == 2
    # As if the step had not been run: scaling by powers of two is exact.
    never, _, _ = run_steps(make_strategy(), [ORDINARY, ORDINARY])
    for one, two in zip(never.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(two, one, rtol=0, atol=0 if devices == 1 else 1e-7)
    for variable in model.trainable_variables + optimizer.variables:
        copies = strategy.experimental_local_results(variable.value)
        assert len({copy.numpy().tobytes() for copy in copies}) == 1, variable.path


def go(folder, steps, num_train_steps, growth_steps=2000, loss_scaled=True):
    """Trains up to a step, logs every step, and returns the bytes of all variables."""
    model, optimizer, loss_scale = make(make_strategy(), growth_steps)
    settings = TrainingSettings(
        num_train_steps, 4, jit_compile=False, log_steps=1, save_checkpoints_steps=3
    )
    train(
        TrainingRun(settings, make_strategy(), folder),
        TrainState(model, optimizer, TASK, loss_scale if loss_scaled else None),
        lambda step: batches_of(steps[step:] if step < len(steps) else steps[-1:]),
    )
    variables = model.variables + optimizer.variables
    return {v.path: keras.ops.convert_to_numpy(v).tobytes() for v in variables}


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_run_continues_after_an_overflow_and_logs_the_loss_scale(tmp_path):
    go(tmp_path, [ORDINARY, OVERFLOW, ORDINARY], 3)
    found = lines(tmp_path)
    assert [line["loss_scale"] for line in found] == [2.0**15, 2.0**15, 2.0**14]
    assert ["gradient_norm" in line for line in found] == [True, False, True]
    assert all(np.isfinite(value) for line in found for value in line.values())


def test_without_a_loss_scale_none_is_logged_and_overflow_ends_the_run(tmp_path):
    go(tmp_path / "good", [ORDINARY], 1, loss_scaled=False)
    assert "loss_scale" not in lines(tmp_path / "good")[0]
    infinite = [*ORDINARY[:3], [np.inf, 0.0]]
    with pytest.raises(InputError, match="step 2: the loss is inf and the gradient norm is"):
        go(tmp_path / "bad", [ORDINARY, infinite], 3, loss_scaled=False)


def test_gradient_that_overflows_at_a_scale_of_1_ends_the_run(tmp_path):
    infinite = [*ORDINARY[:3], [np.inf, 0.0]]
    with pytest.raises(InputError, match=r"step 18: .* the gradient norm is"):
        go(tmp_path, [ORDINARY, ORDINARY, infinite], 40)  # steps 3 to 17 halve 2^15 to 1


@pytest.mark.slow
def test_resumed_run_ends_bit_identical(tmp_path):
    steps = [ORDINARY, OVERFLOW, ORDINARY, ORDINARY, OVERFLOW, ORDINARY]
    uninterrupted = go(tmp_path / "uninterrupted", steps, 6, growth_steps=2)
    go(tmp_path / "parts", steps, 3, growth_steps=2)
    assert go(tmp_path / "parts", steps, 6, growth_steps=2) == uninterrupted
