"""Tests that random bits are a pure function of (seed, site, position) and statistically random."""

import numpy as np
import pytest
from keras import ops

from keras_bert.random_bits import mix, random_bits, site_key

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


@pytest.mark.parametrize("half", [0, 1])
def test_numbers_are_uniform_over_256_bins(half):
    # An element is the low or the high half of a 32-bit word. Each half must be uniform.
    counts = np.bincount(bits()[:, half::2].ravel().view("uint16") >> 8, minlength=256)
    expected = counts.sum() / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)


def test_one_bit_of_the_seed_flips_half_of_the_bits():
    base = bits(np.zeros(1, "int32"), size=4096)
    for bit in range(32):
        seed = np.array([1 << bit], "uint32").view("int32")
        flipped = base ^ bits(seed, size=4096)
        share = np.unpackbits(flipped.view("uint8")).mean()
        assert share == pytest.approx(0.5, abs=0.01)


def test_mix_is_a_bijection_on_a_sample():
    x = np.arange(-(2**16), 2**16, dtype="int32")
    assert len(np.unique(ops.convert_to_numpy(mix(ops.convert_to_tensor(x))))) == 2**17


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
