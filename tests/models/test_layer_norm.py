"""LayerNorm: epsilon 1e-12, computation in float32, names as in Google's checkpoints."""

import numpy as np
from keras import ops

from keras_bert.models.layers import LayerNorm


def layer_norm(dtype="float32"):
    layer = LayerNorm(1e-12, name="LayerNorm", dtype=dtype)
    layer.build((None, 64))
    random = np.random.default_rng(0)
    layer.gamma.assign(random.normal(1, 0.1, 64))
    layer.beta.assign(random.normal(0, 0.1, 64))
    return layer


def reference(layer, x):
    x = np.asarray(x, "float64")
    variance = x.var(-1, keepdims=True)
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(variance + 1e-12)
    return scaled * np.asarray(layer.gamma) + np.asarray(layer.beta)


def test_output_equals_the_definition_to_1e_5():
    layer, x = layer_norm(), np.random.default_rng(1).normal(3, 2, (5, 64)).astype("float32")
    np.testing.assert_allclose(layer(x), reference(layer, x), atol=1e-5)


def test_epsilon_is_1e_12_so_small_vectors_are_normalized():
    layer, x = layer_norm(), np.random.default_rng(1).normal(0, 1e-4, (5, 64)).astype("float32")
    np.testing.assert_allclose(layer(x), reference(layer, x), atol=1e-4)


def test_mixed_precision_computes_in_float32():
    layer = layer_norm("mixed_bfloat16")
    x = ops.cast(np.random.default_rng(1).normal(20, 1, (5, 64)), "bfloat16")
    y = layer(x)
    assert y.dtype == "bfloat16"
    exact = reference(layer, ops.cast(x, "float32"))
    # The final cast loses at most half a unit in the last place of bfloat16 at 4.
    np.testing.assert_allclose(ops.cast(y, "float32"), exact, atol=4 * 2**-9 + 1e-5)


def test_variable_names_equal_those_of_googles_checkpoints():
    paths = [variable.path for variable in layer_norm().variables]
    assert paths == ["LayerNorm/gamma", "LayerNorm/beta"]
