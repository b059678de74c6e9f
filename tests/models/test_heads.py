"""The heads: gathering masked positions first, tied embeddings, logits in float32."""

import numpy as np
import pytest
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.models.heads import MaskedLMHead, linear_head
from keras_bert.models.layers import Pooler

B, S, H, V = 2, 5, 8, 11
CONFIG = BertConfig(V, H, 1, 2, hidden_act="relu", initializer_range=0.5)
POSITIONS = np.array([[4, 0, 1], [2, 2, 3]], "int32")


@pytest.fixture
def hidden():
    return np.random.default_rng(0).normal(size=(B, S, H)).astype("float32")


@pytest.fixture
def table():
    return np.random.default_rng(1).normal(size=(V, H)).astype("float32")


def randomized(layer):
    """Sets every variable to random values, so that a missing one changes the result."""
    rng = np.random.default_rng(2)
    for variable in layer.variables:
        variable.assign(rng.normal(size=variable.shape))
    return layer


def masked_lm(dtype="float32"):
    head = MaskedLMHead(CONFIG, name="masked_lm", dtype=dtype)
    head.build((None, None, H))
    return randomized(head)


def test_masked_lm_is_dense_act_layer_norm_then_tied_table_and_bias(hidden, table):
    head = masked_lm()
    bias, kernel, dense_bias, gamma, beta = (np.asarray(v, float) for v in head.variables)
    gathered = np.stack([hidden[b, POSITIONS[b]] for b in range(B)])
    x = np.maximum(gathered @ kernel + dense_bias, 0.0)
    x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * gamma + beta
    np.testing.assert_allclose(head(hidden, POSITIONS, table), x @ table.T + bias, atol=1e-4)


def test_masked_lm_has_no_table_of_its_own():
    assert [v.path for v in masked_lm().variables] == [
        "masked_lm/output_bias",
        "masked_lm/dense/kernel",
        "masked_lm/dense/bias",
        "masked_lm/LayerNorm/gamma",
        "masked_lm/LayerNorm/beta",
    ]


def test_logits_are_float32_under_mixed_bfloat16(hidden, table):
    head, low = masked_lm("mixed_bfloat16"), ops.cast(hidden, "bfloat16")
    assert head(low, POSITIONS, table).dtype == "float32"
    assert {v.dtype for v in head.variables} == {"float32"}
    assert linear_head(2, 0.02, "x")(low[:, 0]).dtype == "float32"


def test_pooler_is_tanh_of_dense_of_the_first_token(hidden):
    pooler = Pooler(CONFIG)
    pooler.build((None, None, H))
    kernel, bias = (np.asarray(v) for v in randomized(pooler).variables)
    np.testing.assert_allclose(pooler(hidden), np.tanh(hidden[:, 0] @ kernel + bias), atol=1e-5)


def test_pooler_uses_the_first_token_of_every_packed_example(hidden):
    pooler = Pooler(CONFIG)
    pooler.build((None, None, H))
    randomized(pooler)
    pooled = pooler(hidden, POSITIONS)
    assert pooled.shape == (B, 3, H)
    for b, k in np.ndindex(POSITIONS.shape):
        alone = pooler(hidden[b : b + 1, POSITIONS[b, k] :])
        np.testing.assert_allclose(pooled[b, k], alone[0], atol=1e-6)
