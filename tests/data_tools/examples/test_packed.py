"""Tests of packing several examples into one row."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.examples.packed import WINDOW, pack_examples
from keras_bert.data.masking import num_to_predict


def pack(lengths, most=20, max_seq_length=128, seed=0):
    lengths = np.array(lengths, np.int64)
    budget = num_to_predict(lengths, 0.15, most)
    order, starts = pack_examples(
        lengths, budget, max_seq_length, most, np.random.default_rng(seed)
    )
    return lengths, budget, order, starts


@given(st.lists(st.integers(4, 64), max_size=300), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_rows_respect_their_limits_and_no_example_is_lost(lengths, most):
    lengths, budget, order, starts = pack(lengths, most, 64)
    assert sorted(order) == list(range(len(lengths)))
    assert (np.diff(starts) > 0).all()
    assert starts[0] == 0
    assert starts[-1] == len(lengths)
    for a, b in itertools.pairwise(starts):
        assert lengths[order[a:b]].sum() <= 64
        assert budget[order[a:b]].sum() <= most


def test_first_example_of_a_row_did_not_fit_into_earlier_rows():
    """Packing is best fit by decreasing length; the number of predictions is no limit here."""
    lengths = np.random.default_rng(1).integers(5, 129, WINDOW)
    _, _, order, starts = pack(lengths, most=128)
    room = 128 - np.add.reduceat(lengths[order], starts[:-1])
    opener = np.maximum.reduceat(lengths[order], starts[:-1])
    is_later = opener[:, None] > opener[None, :]
    assert is_later.sum() > 10_000
    assert (opener[None, :] > room[:, None])[is_later].all()


@pytest.mark.parametrize("longest", [32, 64])
def test_short_examples_leave_little_padding(longest):
    lengths = np.random.default_rng(2).integers(8, longest + 1, 10 * WINDOW)
    _, _, _, starts = pack(lengths)
    assert lengths.sum() / (128 * (len(starts) - 1)) > 0.97  # 0.16 and 0.28 if not packed


def test_examples_are_packed_within_a_window_and_rows_are_shuffled():
    lengths = np.random.default_rng(3).integers(8, 40, 20 * WINDOW)
    _, _, order, starts = pack(lengths)
    window = order // WINDOW
    of_row = window[starts[:-1]]
    np.testing.assert_array_equal(np.repeat(of_row, np.diff(starts)), window)
    # Rows are sorted neither by their window nor by the length of their examples.
    place = np.arange(len(of_row))
    longest = np.maximum.reduceat(lengths[order], starts[:-1])
    for values in (of_row, longest):
        assert abs(np.corrcoef(place, values)[0, 1]) < 4 / np.sqrt(len(place))


def test_same_generator_packs_the_same_way():
    lengths = np.random.default_rng(4).integers(8, 100, 3000)
    first, second, other = (pack(lengths, seed=seed) for seed in (5, 5, 6))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (first[2] != other[2]).any()


def test_no_examples_give_no_rows():
    assert pack([])[3].tolist() == [0]
