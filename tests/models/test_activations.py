"""The two forms of gelu, which differ by up to 4.7e-4."""

import math

import numpy as np

from keras_bert.models.layers import ACTIVATIONS

X = np.linspace(-6, 6, 4001).astype("float32")


def test_gelu_is_the_erf_form():
    expected = [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in X.astype("float64")]
    np.testing.assert_allclose(ACTIVATIONS["gelu"](X), expected, atol=1e-6)


def test_gelu_new_and_gelu_tanh_are_the_tanh_form():
    x = X.astype("float64")
    expected = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    for name in ("gelu_new", "gelu_tanh"):
        np.testing.assert_allclose(ACTIVATIONS[name](X), expected, atol=1e-6)


def test_the_two_forms_differ_by_up_to_0_00047():
    difference = np.abs(ACTIVATIONS["gelu"](X) - ACTIVATIONS["gelu_new"](X))
    assert 4.6e-4 < difference.max() < 4.8e-4
