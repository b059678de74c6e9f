"""Dropout: a pure function of (example seed, site, position), with the quality of random bits."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bert.models.layers import Dropout

SEEDS = np.arange(1000, 1024, dtype="int32")  # Consecutive seeds are the hardest case.
SIZE = 20_000


def kept(rate, seeds=SEEDS, site=0, size=SIZE):
    ones = np.ones((len(seeds), size), "float32")
    return np.asarray(Dropout(rate, site)(ones, seeds)) > 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_of_kept_elements_is_binomial_for_every_example_and_site(rate):
    bound = 4.8 * np.sqrt(rate * (1 - rate) / SIZE)  # about one in a million per draw; 192 draws
    for site in range(8):
        shares = kept(rate, site=site).mean(axis=1)
        assert np.abs(shares - (1 - rate)).max() < bound
        # The shares must vary as in a binomial distribution: too little variation is also wrong.
        assert 0.5 < shares.std() / np.sqrt(rate * (1 - rate) / SIZE) < 1.6


def test_scale_is_the_exact_inverse_of_the_keep_probability():
    values = np.unique(np.asarray(Dropout(0.1, 3)(np.ones((4, 1000), "float32"), SEEDS[:4])))
    # Of the 65,536 values of 16 bits, 6,554 are dropped at a rate of 0.1.
    assert values.tolist() == pytest.approx([0.0, 65536 / (65536 - 6554)], rel=1e-6)


def test_dropout_preserves_the_mean():
    x = np.ones((len(SEEDS), SIZE), "float32")
    assert np.asarray(Dropout(0.1, 0)(x, SEEDS)).mean() == pytest.approx(1.0, abs=2e-3)


def correlation(a, b):
    """Returns the correlation of two masks in standard deviations expected by chance."""
    a, b = a - a.mean(), b - b.mean()
    return np.abs((a * b).mean() / (a.std() * b.std())) * np.sqrt(a.size)


def test_masks_of_consecutive_seeds_are_uncorrelated():
    masks = kept(0.1).astype("float64")
    worst = max(correlation(a, b) for a, b in itertools.combinations(masks, 2))
    assert worst < 5.0  # 276 pairs; by chance, about 1 in 6,000 runs reaches 5


def test_masks_of_different_sites_are_uncorrelated():
    masks = [kept(0.1, SEEDS[:1], site)[0].astype("float64") for site in range(38)]
    worst = max(correlation(a, b) for a, b in itertools.combinations(masks, 2))
    assert worst < 5.0  # 38 sites; a 12-layer model has 37; 703 pairs


@pytest.mark.parametrize("stride", [1, 2, 3, 64, 128, 768, 1024])
def test_masks_of_different_positions_are_uncorrelated(stride):
    masks = kept(0.1).astype("float64")
    assert correlation(masks[:, :-stride].ravel(), masks[:, stride:].ravel()) < 5.0


def test_number_of_zeros_in_blocks_of_positions_is_binomial():
    # A row or head must not be dropped as a whole: counts over 64 neighbours vary as by chance.
    counts = (~kept(0.1)[:, : SIZE // 64 * 64]).reshape(-1, 64).sum(axis=1)
    assert counts.var() == pytest.approx(64 * 0.1 * 0.9, rel=0.06)


def test_mask_does_not_depend_on_the_place_in_the_batch():
    whole = kept(0.1)
    assert np.array_equal(np.concatenate([kept(0.1, SEEDS[:7]), kept(0.1, SEEDS[7:])]), whole)
    assert np.array_equal(kept(0.1, SEEDS[::-1]), whole[::-1])


def test_xla_draws_the_same_mask():
    x, layer = tf.ones((4, 7, 32)), Dropout(0.3, 2)
    seeds = tf.constant(SEEDS[:4])
    plain = tf.function(lambda: layer(x, seeds))()
    compiled = tf.function(lambda: layer(x, seeds), jit_compile=True)()
    assert np.array_equal(plain, compiled)
    assert np.array_equal(plain, layer(x, seeds))


def test_gradient_has_the_same_mask():
    x, layer = tf.Variable(tf.ones((2, 50))), Dropout(0.5, 1)
    with tf.GradientTape() as tape:
        y = layer(x, tf.constant(SEEDS[:2]))
    assert np.array_equal(tape.gradient(y, x), y)


def test_unknown_size_draws_the_same_mask():
    layer = Dropout(0.5, 1)
    signature = [tf.TensorSpec((None, None, None), tf.float32)]
    unknown = tf.function(lambda x: layer(x, SEEDS[:3]), input_signature=signature)
    for length in (2, 3):
        x = tf.ones((3, length, 5))
        assert np.array_equal(unknown(x), layer(x, SEEDS[:3]))


def test_dropout_without_seed_or_at_rate_0_is_the_identity():
    x = np.random.default_rng(0).normal(size=(2, 9)).astype("float32")
    assert np.array_equal(Dropout(0.5, 1)(x), x)
    assert np.array_equal(Dropout(0.0, 1)(x, SEEDS[:2]), x)


def test_bfloat16_has_the_same_mask():
    layer = Dropout(0.5, 1, dtype="mixed_bfloat16")
    y = layer(ops.ones((2, 100), "bfloat16"), SEEDS[:2])
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    assert np.array_equal(np.asarray(ops.cast(y, "float32")) > 0, kept(0.5, SEEDS[:2], 1, 100))
