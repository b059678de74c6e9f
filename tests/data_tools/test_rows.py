"""Tests of packing several examples into one row, and of the layout of rows."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.pairs import ExampleSpans
from data_tools.rows import WINDOW, lay_out, pack_examples
from keras_bert.pretraining.masking import num_to_predict


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


# --- layout ---


IDS = np.arange(10, 30, dtype=np.int32)
SPECIAL = (1, 2, 0)


def check(features, expected):
    assert features.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(features[name], values, err_msg=name)


def test_layout_of_pairs():
    examples = ExampleSpans.of_pairs(np.array([[0, 2, 5, 8, 0], [3, 4, 0, 1, 1]]))
    features = lay_out(IDS, examples, np.arange(3), 10, SPECIAL)
    expected = {
        "input_ids": [[1, 10, 11, 2, 15, 16, 17, 2, 0, 0], [1, 13, 2, 10, 2, 0, 0, 0, 0, 0]],
        "input_mask": [[1, 1, 1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]],
        "segment_ids": [[0, 0, 0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]],
        "next_sentence_labels": [[0], [1]],
    }
    check(features, expected)


def test_layout_of_full_sentences():
    parts = np.array([[0, 2], [7, 8], [2, 5], [19, 20]])
    examples = ExampleSpans(parts, np.array([0, 2, 3, 4]), np.zeros(3, int))
    features = lay_out(IDS, examples, np.arange(4), 7, SPECIAL, has_segments=False)
    expected = {
        "input_ids": [
            [1, 10, 11, 2, 17, 2, 0],
            [1, 12, 13, 14, 2, 0, 0],
            [1, 29, 2, 0, 0, 0, 0],
        ],
        "input_mask": [[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0]],
        "segment_ids": np.zeros((3, 7)),
        "next_sentence_labels": [[0], [0], [0]],
    }
    check(features, expected)


def test_layout_of_packed_rows():
    pairs = np.array([[0, 1, 3, 5, 1], [6, 7, 8, 9, 0], [0, 2, 2, 3, 1]])
    features = lay_out(
        IDS,
        ExampleSpans.of_pairs(pairs),
        np.array([0, 2, 3]),
        12,
        SPECIAL,
        packed_slots=3,
    )
    expected = {
        "input_ids": [
            [1, 10, 2, 13, 14, 2, 1, 16, 2, 18, 2, 0],
            [1, 10, 11, 2, 12, 2, 0, 0, 0, 0, 0, 0],
        ],
        "input_mask": [[1] * 11 + [0], [1] * 6 + [0] * 6],
        "segment_ids": [
            [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0],
            [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0],
        ],
        "position_ids": [
            [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0],
            [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0],
        ],
        "example_ids": [[1] * 6 + [2] * 5 + [0], [1] * 6 + [0] * 6],
        "next_sentence_labels": [[1, 0, 0], [1, 0, 0]],
        "next_sentence_positions": [[0, 6, 0], [0, 0, 0]],
        "next_sentence_weights": [[1, 1, 0], [1, 0, 0]],
    }
    check(features, expected)
    assert features["next_sentence_weights"].dtype == np.float32
