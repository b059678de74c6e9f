"""Lamb: the trust ratio, and the variables excluded from it."""

import numpy as np
import pytest

from keras_bert.optimization.lamb import Lamb


@pytest.fixture
def move(reference):
    """Returns a function that gives a variable's change in one step at learning rate 0.1."""

    def change(path, weight, gradient, **arguments):
        variable = reference.variable(path, weight)
        Lamb(0.1, **arguments).apply([np.asarray(gradient, "float32")], [variable])
        return variable.numpy() - np.asarray(weight, "float32")

    return change


def test_step_norm_is_the_variable_norm_times_the_learning_rate(move):
    change = move("a/kernel", [[3.0, 4.0]], [[0.2, -7.0]])
    np.testing.assert_allclose(np.linalg.norm(change), 0.1 * 5.0, rtol=1e-5)


def test_weight_decay_is_added_before_the_norm(move):
    """r = sign(g) + 0.5 w = [2.5, 1], |w| = 3; step = 0.1 * 3 / |r| * r."""
    change = move("a/kernel", [3.0, 0.0], [1.0, 1.0], weight_decay=0.5)
    r = np.array([2.5, 1.0])
    np.testing.assert_allclose(change, -0.1 * 3.0 / np.linalg.norm(r) * r, rtol=1e-5)


def test_excluded_variables_are_neither_decayed_nor_rescaled(move):
    for path in ("a/LayerNorm/gamma", "a/bias", "masked_lm/output_bias"):
        np.testing.assert_allclose(move(path, [30.0, 40.0], [1.0, -1.0]), [-0.1, 0.1], rtol=1e-4)


def test_ratio_is_one_for_zero_weights(move):
    np.testing.assert_allclose(move("a/kernel", [0.0, 0.0], [1.0, 1.0]), [-0.1, -0.1], rtol=1e-5)


def test_ratio_is_one_for_a_zero_step(move):
    np.testing.assert_array_equal(move("a/kernel", [1.0], [0.0], weight_decay=0.0), [0.0])


def test_config_round_trip():
    config = Lamb(1e-3, learning_rate_multipliers=[("a", 0.5)]).get_config()
    assert Lamb.from_config(config).get_config() == config
    assert "bias_correction" not in config
