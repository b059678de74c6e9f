"""The layers, beyond the comparison of whole networks with transformers (test_golden.py)."""

import itertools

import numpy as np
import pytest
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models.attention import SelfAttention
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.layers import (
    BertEmbeddings,
    Dropout,
    LayerNorm,
)

SEEDS = np.arange(1000, 1024, dtype="int32")  # Consecutive seeds are the hardest case.
SIZE = 20_000


# --- LayerNorm ---


def test_layer_norm_computes_in_float32_with_a_tiny_epsilon():
    random = np.random.default_rng(1)
    layers = [LayerNorm(1e-12, dtype=dtype) for dtype in ("float32", "mixed_bfloat16")]
    inputs = [
        random.normal(0, 1e-4, (5, 64)).astype("float32"),
        ops.cast(random.normal(20, 1, (5, 64)), "bfloat16"),
    ]
    # The final cast loses at most half a unit in the last place of bfloat16 at 4.
    for layer, x, tolerance in zip(layers, inputs, (1e-4, 4 * 2**-9 + 1e-5), strict=True):
        layer.build((None, 64))
        x64 = np.asarray(ops.cast(x, "float32"), "float64")
        deviation = np.sqrt(x64.var(-1, keepdims=True) + 1e-12)
        expected = (x64 - x64.mean(-1, keepdims=True)) / deviation
        y = layer(x)
        assert y.dtype == layer.compute_dtype
        np.testing.assert_allclose(ops.cast(y, "float32"), expected, atol=tolerance)


# --- embeddings and heads ---

IDS = np.array([[1, 5, 5, 0], [2, 3, 9, 9]], "int32")
SEGMENTS = np.array([[0, 0, 1, 1], [0, 1, 1, 0]], "int32")


def test_dropout_of_the_embeddings_is_applied_last():
    config = BertConfig(10, 8, 1, 2, max_position_embeddings=6, hidden_dropout_prob=0.5)
    embeddings = BertEmbeddings(config)
    embeddings.build()
    dropped = np.asarray(embeddings(IDS, SEGMENTS, np.array([3, 4], "int32")))
    whole = np.asarray(embeddings(IDS, SEGMENTS))
    assert 0 < (dropped == 0).mean() < 1
    np.testing.assert_allclose(dropped[dropped != 0], 2 * whole[dropped != 0], rtol=1e-6)


@pytest.mark.parametrize("names", [(), ("position_ids", "example_ids")])
def test_sequence_over_max_position_embeddings_is_rejected(names):
    encoder = BertEncoder(BertConfig(11, 8, 1, 2, max_position_embeddings=6))
    names = ("input_ids", "input_mask", "segment_ids", *names)
    with pytest.raises(InputError, match=r"sequences of 7 tokens.*max_position_embeddings.*6"):
        encoder(dict.fromkeys(names, np.zeros((1, 7), "int32")))


def test_tables_are_initialized_from_different_truncated_normals():
    config = BertConfig(200, 64, 1, 1, max_position_embeddings=200, type_vocab_size=200)
    layer = BertEmbeddings(config)
    layer.build()
    tables = [np.asarray(v) for v in layer.variables[:3]]
    for table in tables:
        assert np.abs(table).max() <= 0.04
        # A normal truncated at two standard deviations has 0.88 of its standard deviation.
        assert 0.017 < table.std() < 0.0182
    assert not np.array_equal(tables[0], tables[1])
    assert not np.array_equal(tables[1], tables[2])


# --- attention ---


def test_dropout_is_applied_to_the_attention_probabilities():
    config = BertConfig(1, 12, num_attention_heads=3, attention_probs_dropout_prob=0.5)
    layer = SelfAttention(config, 1)
    layer.build((None, None, 12))
    # If all values are one, each context is twice the sum of the probabilities that remain.
    layer.value.kernel.assign(np.zeros((12, 12)))
    layer.value.bias.assign(np.ones(12))
    hidden, mask = np.random.default_rng(0).normal(size=(2, 5, 12)), np.ones((2, 5), "int32")
    assert np.allclose(layer(hidden, mask), 1.0, atol=1e-6)
    sums = np.asarray(layer(hidden, mask, np.array([1, 2], "int32"))).reshape(2, 5, 3, 4)
    assert np.ptp(sums, axis=-1).max() < 1e-6
    assert np.ptp(sums) > 0.5


# --- dropout: a pure function of (example seed, site, position) ---


def is_kept(rate, seeds=SEEDS, site=0, size=SIZE):
    ones = np.ones((len(seeds), size), "float32")
    return np.asarray(Dropout(rate, site)(ones, seeds)) > 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_of_kept_elements_is_binomial_for_every_example_and_site(rate):
    bound = 4.8 * np.sqrt(rate * (1 - rate) / SIZE)  # about one in a million per draw; 192 draws
    for site in range(8):
        shares = is_kept(rate, site=site).mean(axis=1)
        assert np.abs(shares - (1 - rate)).max() < bound
        # The shares must vary as in a binomial distribution: too little variation is also wrong.
        assert 0.5 < shares.std() / np.sqrt(rate * (1 - rate) / SIZE) < 1.6


def test_scale_is_the_exact_inverse_of_the_keep_probability():
    values = np.unique(np.asarray(Dropout(0.1, 3)(np.ones((4, 1000), "float32"), SEEDS[:4])))
    # Of the 65,536 values of 16 bits, 6,554 are dropped at a rate of 0.1.
    assert values.tolist() == pytest.approx([0.0, 65536 / (65536 - 6554)], rel=1e-6)


def correlation(a, b):
    """Returns the correlation of two masks in standard deviations expected by chance."""
    a, b = a - a.mean(), b - b.mean()
    return np.abs((a * b).mean() / (a.std() * b.std())) * np.sqrt(a.size)


def test_masks_of_seeds_sites_and_positions_are_uncorrelated():
    of_seeds = is_kept(0.1).astype("float64")
    # A 12-layer model has 37 sites.
    of_sites = [is_kept(0.1, SEEDS[:1], site)[0].astype("float64") for site in range(38)]
    pairs = [pair for masks in (of_seeds, of_sites) for pair in itertools.combinations(masks, 2)]
    for stride in (1, 64, 768):
        pairs.append((of_seeds[:, :-stride].ravel(), of_seeds[:, stride:].ravel()))
    # By chance, about 1 in 1,700 runs reaches 5 for one of the 982 pairs.
    assert max(correlation(a, b) for a, b in pairs) < 5.0
