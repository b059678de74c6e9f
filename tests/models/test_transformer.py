"""The post-LN block: LN(x + dropout(dense(...))) after attention and after feed-forward."""

import numpy as np
import pytest

from keras_bert.config import BertConfig
from keras_bert.models.attention import ResidualOutput, TransformerBlock

B, S, H = 2, 4, 8
SEEDS = np.array([5, 6], "int32")


@pytest.fixture
def hidden():
    return np.random.default_rng(0).normal(size=(B, S, H)).astype("float32")


def randomized(layer, seed=0):
    """Sets biases, gammas and betas to random values, so that a missing one changes the result."""
    rng = np.random.default_rng(seed)
    for variable in layer.variables:
        if variable.name != "kernel":
            variable.assign(rng.normal(size=variable.shape))
    return layer


def normalised(x, layer):
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    return x * np.asarray(layer.gamma) + np.asarray(layer.beta)


def affine(x, layer):
    return x @ np.asarray(layer.kernel) + np.asarray(layer.bias)


def block(**changes):
    dropout_site = changes.pop("dropout_site", 1)
    settings = {
        "vocab_size": 1,
        "hidden_size": H,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "hidden_act": "gelu",
        "initializer_range": 0.5,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    layer = TransformerBlock(BertConfig(**(settings | changes)), dropout_site, name="layer_0")
    layer.build((None, None, H))
    return layer


def test_residual_is_added_after_dropout_and_before_layer_norm(hidden):
    config = BertConfig(1, H, 1, 2, initializer_range=0.5, hidden_dropout_prob=0.5)
    output = ResidualOutput(config, dropout_site=1)
    output.build((None, None, H))
    randomized(output)
    dropped = np.asarray(output.dropout(affine(hidden, output.dense), SEEDS))
    assert 0 < (dropped == 0).sum() < dropped.size
    expected = normalised(hidden + dropped, output.layer_norm)
    np.testing.assert_allclose(output(hidden, hidden, SEEDS), expected, atol=1e-5)


def test_block_is_attention_then_feed_forward(hidden):
    layer, mask = randomized(block(hidden_act="relu")), np.ones((B, S), "int32")
    attended = np.asarray(layer.attention(hidden, mask))
    wide = np.maximum(affine(attended, layer.intermediate.dense), 0.0)
    narrow = affine(wide, layer.residual_output.dense)
    expected = normalised(attended + narrow, layer.residual_output.layer_norm)
    np.testing.assert_allclose(layer(hidden, mask), expected, atol=1e-5)


def test_attention_sublayer_is_projection_residual_layer_norm(hidden):
    attention, mask = randomized(block().attention), np.ones((B, S), "int32")
    context = np.asarray(attention.self_attention(hidden, mask))
    projected = affine(context, attention.residual_output.dense)
    expected = normalised(hidden + projected, attention.residual_output.layer_norm)
    np.testing.assert_allclose(attention(hidden, mask), expected, atol=1e-5)


def test_outputs_are_normalized(hidden):
    y = np.asarray(block()(hidden, np.ones((B, S), "int32")))
    np.testing.assert_allclose(y.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(y.std(-1), 1.0, atol=1e-4)


def test_three_dropout_sites_of_a_block_differ():
    layer = block(dropout_site=4)
    sites = [
        layer.attention.self_attention.dropout.site,
        layer.attention.residual_output.dropout.site,
        layer.residual_output.dropout.site,
    ]
    assert sites == [4, 5, 6]


def test_variable_paths_are_nested_as_in_googles_checkpoints():
    kernels = [v.path for v in block().variables if v.name == "kernel"]
    assert kernels == [
        "layer_0/attention/self/query/kernel",
        "layer_0/attention/self/key/kernel",
        "layer_0/attention/self/value/kernel",
        "layer_0/attention/output/dense/kernel",
        "layer_0/intermediate/dense/kernel",
        "layer_0/output/dense/kernel",
    ]
