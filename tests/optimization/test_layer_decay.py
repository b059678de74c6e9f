"""Layer-wise decay: full learning rate for the top block and heads, less for each layer below."""

import re

import pytest

from keras_bert.common.errors import InputError
from keras_bert.optimization.layer_decay import layer_decay_multipliers


def factor(path, table):
    return next((value for pattern, value in table if re.search(pattern, path)), 1.0)


def test_factor_of_each_layer():
    table = layer_decay_multipliers(0.5, 12)
    assert factor("classifier/kernel", table) == 1
    assert factor("encoder/pooler/dense/kernel", table) == 1
    assert factor("encoder/layer_11/output/dense/kernel", table) == 1
    assert factor("encoder/layer_10/output/dense/kernel", table) == 0.5
    assert factor("encoder/layer_1/output/LayerNorm/gamma", table) == 0.5**10
    assert factor("encoder/layer_0/output/dense/bias", table) == 0.5**11
    assert factor("encoder/embeddings/word_embeddings", table) == 0.5**12


def test_decay_of_one_gives_no_multipliers():
    assert layer_decay_multipliers(1.0, 12) == []


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.5, float("nan")])
def test_decay_out_of_range_is_rejected(decay):
    with pytest.raises(InputError, match="--layer_decay must be above 0 and at most 1"):
        layer_decay_multipliers(decay, 12)
