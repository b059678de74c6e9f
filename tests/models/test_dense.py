"""SplitDense: a keras.layers.Dense with LoRA and quantization, and a bias that is added apart."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert.models.layers import LazyTruncatedNormal, SplitDense, with_bias

X = np.random.default_rng(0).normal(size=(3, 4, 16)).astype("float32")


def dense(dtype="float32"):
    layer = SplitDense.of(8, 0.5, "dense", dtype)
    layer.build((None, None, 16))
    layer.bias.assign(np.arange(8) / 4)
    return layer


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_call_equals_keras_dense(dtype):
    layer, plain = dense(dtype), keras.layers.Dense(8, dtype=dtype)
    assert isinstance(layer, keras.layers.Dense)
    plain.build((None, None, 16))
    plain.set_weights(layer.get_weights())
    y = layer(X)
    assert y.dtype == ("float32" if dtype == "float32" else "bfloat16")
    tolerance = 1e-5 if dtype == "float32" else 0.06
    np.testing.assert_allclose(
        ops.cast(y, "float32"), ops.cast(plain(X), "float32"), atol=tolerance
    )


def test_product_plus_bias_equals_the_call():
    layer = dense()
    product, bias = layer.product_and_bias(ops.convert_to_tensor(X))
    assert np.array_equal(bias, np.arange(8) / 4)
    assert np.array_equal(with_bias(product, bias), layer(X))


def test_lora_changes_the_product():
    layer = dense()
    before = np.asarray(layer(X))
    layer.enable_lora(2)
    assert np.array_equal(layer(X), before)
    layer.lora_kernel_b.assign(np.ones((2, 8)))
    product, bias = layer.product_and_bias(ops.convert_to_tensor(X))
    change = X @ np.asarray(layer.lora_kernel_a) @ np.ones((2, 8))
    np.testing.assert_allclose(with_bias(product, bias), before + change, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_int8_is_close_and_its_product_includes_the_bias(dtype):
    layer = dense(dtype)
    before = np.asarray(ops.cast(layer(X), "float32"))
    layer.quantize("int8")
    assert layer._kernel.dtype == "int8"
    product, bias = layer.product_and_bias(ops.convert_to_tensor(X))
    assert bias is None
    assert product.dtype == layer.compute_dtype
    after = np.asarray(with_bias(product, bias))
    assert 0 < np.abs(after - before).max() < 0.02 * np.abs(before).max()


def test_config_round_trip():
    layer = dense()
    again = SplitDense.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.kernel_initializer.stddev == 0.5


def test_kernel_seed_is_drawn_at_first_use():
    def kernels(unused):
        keras.utils.set_random_seed(1)
        initializers = [LazyTruncatedNormal(1.0) for _ in range(unused + 2)][unused:]
        return [np.asarray(initializer((4, 4))) for initializer in initializers]

    first, second = kernels(0)
    assert not np.array_equal(first, second)
    assert np.array_equal([first, second], kernels(3))
