"""The heads: masked positions gathered first, tied to the embeddings, logits in float32."""

import numpy as np
import pytest
from keras import ops

from keras_bert.layers.heads import MaskedLMHead, Pooler, linear_head

B, S, H, V = 2, 5, 8, 11
POSITIONS = np.array([[4, 0, 1], [2, 2, 3]], "int32")


@pytest.fixture
def hidden():
    return np.random.default_rng(0).normal(size=(B, S, H)).astype("float32")


@pytest.fixture
def table():
    return np.random.default_rng(1).normal(size=(V, H)).astype("float32")


def masked_lm(dtype="float32"):
    head = MaskedLMHead(H, V, "gelu", 0.5, 1e-12, name="masked_lm", dtype=dtype)
    head.build((None, None, H))
    head.output_bias.assign(np.arange(V))
    return head


def test_masked_lm_is_dense_act_layer_norm_then_the_tied_table(hidden, table):
    head = masked_lm()
    gathered = np.stack([hidden[b, POSITIONS[b]] for b in range(B)])
    x = np.asarray(head.layer_norm(head.activation(head.dense(gathered))))
    expected = x @ table.T + np.arange(V)
    np.testing.assert_allclose(head(hidden, POSITIONS, table), expected, atol=1e-5)


def test_masked_lm_owns_no_table():
    assert [v.path for v in masked_lm().variables] == [
        "masked_lm/output_bias",
        "masked_lm/dense/kernel",
        "masked_lm/dense/bias",
        "masked_lm/LayerNorm/gamma",
        "masked_lm/LayerNorm/beta",
    ]


def test_logits_are_float32_under_mixed_bfloat16(hidden, table):
    logits = masked_lm("mixed_bfloat16")(ops.cast(hidden, "bfloat16"), POSITIONS, table)
    assert logits.dtype == "float32"
    exact = masked_lm()
    assert linear_head(2, 0.02, "x")(ops.cast(hidden[:, 0], "bfloat16")).dtype == "float32"
    assert exact.output_bias.dtype == "float32"


def test_pooler_is_tanh_of_the_first_piece(hidden):
    pooler = Pooler(H, 0.5)
    pooler.build((None, None, H))
    expected = np.tanh(hidden[:, 0] @ np.asarray(pooler.dense.kernel))
    np.testing.assert_allclose(pooler(hidden), expected, atol=1e-6)
