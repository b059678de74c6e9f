"""The loss scale halves at a bad step, doubles after many good ones, and is saved as state."""

import keras
import pytest

from keras_bert.optimization.adamw import AdamWeightDecay
from keras_bert.optimization.loss_scale import LossScale


@pytest.fixture
def optimizer():
    return AdamWeightDecay(1e-3)


def after(loss_scale, steps):
    """Returns the scale after each step; "+" is a good step."""
    scales = []
    for step in steps:
        loss_scale.update(step == "+")
        scales.append(float(loss_scale.scale.numpy()))
    return scales


def test_default_scale_is_2_to_the_15th_and_grows_after_2000_good_steps(optimizer):
    loss_scale = LossScale(optimizer)
    assert float(loss_scale.scale.numpy()) == 2.0**15
    assert loss_scale.growth_steps == 2000


@pytest.mark.parametrize(
    ("steps", "scales"),
    [
        ("+++", [8.0, 8.0, 16.0]),
        ("++-+++", [8.0, 8.0, 4.0, 4.0, 4.0, 8.0]),  # a bad step restarts the count
        ("+++" * 2, [8.0, 8.0, 16.0, 16.0, 16.0, 32.0]),
        ("----", [4.0, 2.0, 1.0, 0.5]),
    ],
)
def test_scale_doubles_after_good_steps_in_a_row_and_halves_at_a_bad_one(optimizer, steps, scales):
    assert after(LossScale(optimizer, initial=8.0, growth_steps=3), steps) == scales


def test_scale_is_at_most_2_to_the_24th(optimizer):
    assert after(LossScale(optimizer, 2.0**23, 1), "+++") == [2.0**24] * 3


def test_scale_is_part_of_the_optimizer_state(optimizer):
    optimizer.build([keras.Variable([1.0], name="w")])
    LossScale(optimizer)
    assert [v.path.split("/")[-1] for v in optimizer.variables[-2:]] == ["loss_scale", "good_steps"]
