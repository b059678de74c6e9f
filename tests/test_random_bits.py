"""Tests that random bits are a pure function of (seed, site, position) and statistically random."""

import numpy as np
import pytest
from keras import ops

from keras_bert.random_bits import random_bits, site_key

SEEDS = np.arange(1000, 1024, dtype="int32")  # Consecutive seeds are the hard case.
SIZE = 20_000


def bits(seeds=SEEDS, site=0, size=SIZE):
    return ops.convert_to_numpy(random_bits(site_key(ops.convert_to_tensor(seeds), site), size))


def test_every_bit_is_balanced_and_pairs_of_bits_are_independent():
    words = bits().ravel().view("uint16")
    planes = np.stack([(words >> i) & 1 for i in range(16)]).astype("float64")
    deviations = np.abs(planes.mean(axis=1) - 0.5) * 2 * np.sqrt(words.size)
    assert deviations.max() < 5.0
    correlations = np.corrcoef(planes) - np.eye(16)
    assert np.abs(correlations).max() * np.sqrt(words.size) < 5.0


def test_bits_equal_stored_values():
    # Later versions of this code must resume training runs, so the bits must not change.
    values = bits(np.array([0, 1, -5], "int32"), site=7, size=3)
    assert values.tolist() == [
        [-19972, -12942, -31100],
        [17994, -28885, -30241],
        [-32369, -18216, 19568],
    ]


def test_odd_size_gives_the_same_bits():
    assert np.array_equal(bits(size=7), bits(size=8)[:, :7])


@pytest.mark.parametrize("size", [7, 2048, 5000])
def test_keep_positions_does_not_change_the_bits(size):
    key = site_key(ops.convert_to_tensor(SEEDS), 0)
    values = ops.convert_to_numpy(random_bits(key, size, keep_positions=False))
    assert np.array_equal(values, bits(size=size))
