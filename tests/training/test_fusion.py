"""Compiled chains give the values and gradients of the plain functions, with one compilation."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.models import BertPretrainer
from keras_bert.models.layers.chain import chain, compile_chains_with
from keras_bert.models.layers.layer_norm import BiasAndNorm
from keras_bert.models.layers.transformer import residual_norm
from keras_bert.training.step import compile_chain, compiled

B, S, H = 3, 4, 8
SETTINGS = {"rate": 0.4, "epsilon": 1e-12}


def tensors(dtype="float32"):
    random = np.random.default_rng(0)
    shapes = [(B, S, H), (B, S, H), (H,), (H,), (H,)]
    values = [tf.constant(random.normal(size=shape), tf.float32) for shape in shapes]
    product, x = (tf.cast(value, dtype) for value in values[:2])
    return [product, x, BiasAndNorm(*values[2:]), tf.constant([7, 8, 9])]


def value_and_gradients(function, inputs, **settings):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = function(*inputs, **settings)
        loss = tf.reduce_sum(tf.cast(result, tf.float32) ** 3)
    return [result, *tf.nest.flatten(tape.gradient(loss, inputs))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_gradients_equal_those_of_the_plain_function(dtype):
    plain = value_and_gradients(residual_norm, tensors(dtype), **SETTINGS)
    fused = value_and_gradients(compile_chain(residual_norm), tensors(dtype), **SETTINGS)
    assert plain[-1] is fused[-1] is None  # The key is an integer and has no gradient.
    for a, b in zip(plain[:-1], fused[:-1], strict=True):
        assert a.dtype == b.dtype
        a, b = (np.asarray(tf.cast(x, tf.float32)) for x in (a, b))
        np.testing.assert_allclose(b, a, rtol=1e-5 if dtype == "float32" else 2e-2, atol=1e-4)


def test_missing_tensor_stays_missing():
    inputs = tensors()[:-1]
    plain = residual_norm(*inputs, None, **SETTINGS)
    fused = compile_chain(residual_norm)(*inputs, None, **SETTINGS)
    np.testing.assert_allclose(fused, plain, atol=1e-6)


def test_missing_tensor_of_a_named_tuple_stays_missing():
    product, x, weights, key = tensors()
    inputs = [product + weights.bias, x, weights._replace(bias=None), key]
    plain = residual_norm(product, x, weights, key, **SETTINGS)
    fused = compile_chain(residual_norm)(*inputs, **SETTINGS)
    np.testing.assert_allclose(fused, plain, atol=1e-6)


def test_one_trace_serves_all_calls_with_the_same_shape():
    traced = []

    @chain
    def doubled(x):
        traced.append(x.shape)
        return 2.0 * x

    @tf.function
    def twelve_times(x):
        with compile_chains_with(compile_chain):
            for _ in range(12):
                x = doubled(x)
        return x

    assert twelve_times(tf.ones([3])).numpy().tolist() == [4096.0] * 3
    assert traced == [(3,)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_model_of_compiled_chains_equals_the_plain_model(dtype):
    keras.utils.set_random_seed(0)
    config = BertConfig(50, 16, 2, 2, 32, max_position_embeddings=12, initializer_range=0.2)
    model = BertPretrainer(config, dtype=dtype)
    inputs = {
        "input_ids": tf.constant([[3, 4, 5, 6, 7, 0], [1, 2, 3, 4, 5, 6]]),
        "input_mask": tf.constant([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]),
        "segment_ids": tf.constant([[0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1]]),
        "masked_lm_positions": tf.constant([[1, 2], [3, 5]]),
        "dropout_seed": tf.constant([11, 12]),
    }

    def forward_backward(x):
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            logits = outputs["masked_lm_logits"]
            loss = tf.reduce_sum(logits**2) + tf.reduce_sum(outputs["next_sentence_logits"] ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        return logits, [tf.convert_to_tensor(gradient) for gradient in gradients]

    logits, gradients = forward_backward(inputs)
    fused_logits, fused_gradients = compiled(forward_backward, True)(inputs)
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    for a, b in zip([logits, *gradients], [fused_logits, *fused_gradients], strict=True):
        a, b = ops.convert_to_numpy(a), ops.convert_to_numpy(b)
        assert np.abs(a - b).max() <= tolerance * max(1.0, np.abs(a).max())
