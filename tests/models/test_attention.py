"""Self-attention: softmax(QKᵀ/√D + (1 - mask)·-10000)V, with the mask applied to keys only."""

import numpy as np
import pytest
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.models.attention import SelfAttention, causal_mask, example_mask, key_mask

B, S, H, N = 2, 5, 12, 3
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")


@pytest.fixture
def hidden():
    return np.random.default_rng(0).normal(size=(B, S, H)).astype("float32")


def attention(dtype="float32", rate=0.0, causal=False):
    config = BertConfig(
        1,
        H,
        num_attention_heads=N,
        attention_probs_dropout_prob=rate,
        initializer_range=0.5,
        is_decoder=causal,
    )
    layer = SelfAttention(config, 1, name="self", dtype=dtype)
    layer.build((None, None, H))
    random = np.random.default_rng(1)
    for projection in (layer.query, layer.key, layer.value):
        projection.bias.assign(random.normal(size=H))
    return layer


def reference(layer, hidden):
    def project(dense):
        x = hidden.astype("float64") @ np.asarray(dense.kernel, "float64") + np.asarray(dense.bias)
        return x.reshape(B, S, N, H // N).transpose(0, 2, 1, 3)

    query, key, value = (project(dense) for dense in (layer.query, layer.key, layer.value))
    scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(H // N)
    scores = scores + (1 - MASK)[:, None, None, :] * -10000.0
    if layer.config.is_decoder:
        scores = scores + np.triu(np.full((S, S), -10000.0), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = weights / weights.sum(-1, keepdims=True) @ value
    return context.transpose(0, 2, 1, 3).reshape(B, S, H)


@pytest.mark.parametrize("causal", [False, True])
def test_output_equals_the_definition_to_1e_5(hidden, causal):
    layer = attention(causal=causal)
    np.testing.assert_allclose(layer(hidden, MASK), reference(layer, hidden), atol=1e-5)


def test_mask_is_0_or_minus_10000_on_the_keys():
    mask = np.asarray(key_mask(MASK))
    assert mask.shape == (B, 1, 1, S)
    assert mask[1, 0, 0].tolist() == [0, 0, 0, -10000, -10000]


def test_mask_of_packed_rows_is_0_only_within_an_example():
    mask = np.asarray(example_mask(np.array([[1, 1, 2, 0, 0]], "int32")))
    assert mask.shape == (1, 1, S, S)
    allowed = mask[0, 0] == 0
    assert set(mask[~np.broadcast_to(allowed, mask.shape)]) == {-10000}
    assert allowed.astype(int).tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1],
    ]


def test_causal_mask_is_0_up_to_the_token_itself():
    mask = np.asarray(causal_mask(3))
    assert mask.tolist() == [[0, -10000, -10000], [0, 0, -10000], [0, 0, 0]]


def test_examples_of_a_packed_row_attend_only_to_themselves(hidden):
    layer = attention()
    ids = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]], "int32")
    packed = np.asarray(layer(hidden, MASK, None, ids))
    for row, columns in ((0, slice(0, 2)), (0, slice(2, 5)), (1, slice(0, 3))):
        alone = hidden[row : row + 1, columns]
        expected = layer(alone, np.ones(alone.shape[:2], "int32"))
        np.testing.assert_allclose(packed[row : row + 1, columns], expected, atol=1e-6)


def test_padding_does_not_change_the_outputs_of_real_tokens(hidden):
    layer = attention()
    other = hidden.copy()
    other[1, 3:] += 7.0
    a, b = layer(hidden, MASK), layer(other, MASK)
    assert np.array_equal(a[1, :3], b[1, :3])


def test_softmax_is_float32_under_mixed_bfloat16(hidden):
    layer = attention("mixed_bfloat16")
    context = layer(ops.cast(hidden, "bfloat16"), MASK)
    assert context.dtype == "bfloat16"
    difference = np.abs(np.asarray(ops.cast(context, "float32")) - reference(layer, hidden))
    assert difference.max() < 0.1
    assert difference.mean() < 0.02


def test_dropout_is_applied_to_the_probabilities(hidden):
    layer = attention(rate=0.5)
    # If all values are one, each context is twice the sum of the kept probabilities.
    layer.value.kernel.assign(np.zeros((H, H)))
    layer.value.bias.assign(np.ones(H))
    seeds = np.array([1, 2], "int32")
    assert np.allclose(layer(hidden, MASK), 1.0, atol=1e-6)
    sums = np.asarray(layer(hidden, MASK, seeds)).reshape(B, S, N, H // N)
    assert np.ptp(sums, axis=-1).max() < 1e-6
    assert np.ptp(sums) > 0.5


def test_query_key_and_value_kernels_start_different():
    layer = attention()
    kernels = [np.asarray(d.kernel) for d in (layer.query, layer.key, layer.value)]
    assert not np.array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[1], kernels[2])
