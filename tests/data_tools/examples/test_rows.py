"""Tests of the layout of rows."""

import numpy as np

from data_tools.examples.instances import ExampleSpans
from data_tools.examples.rows import RowLayout, lay_out

IDS = np.arange(10, 30, dtype=np.int32)
SPECIAL = (1, 2, 0)


def check(features, expected):
    assert features.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(features[name], values, err_msg=name)


def test_layout_of_pairs():
    examples = ExampleSpans.of_pairs(np.array([[0, 2, 5, 8, 0], [3, 4, 0, 1, 1]]))
    features = lay_out(IDS, examples, np.arange(3), RowLayout(10, SPECIAL))
    expected = {
        "input_ids": [[1, 10, 11, 2, 15, 16, 17, 2, 0, 0], [1, 13, 2, 10, 2, 0, 0, 0, 0, 0]],
        "input_mask": [[1, 1, 1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]],
        "segment_ids": [[0, 0, 0, 0, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]],
        "next_sentence_labels": [[0], [1]],
    }
    check(features, expected)


def test_full_row_has_no_padding():
    examples = ExampleSpans.of_pairs(np.array([[0, 3, 4, 8, 0]]))
    features = lay_out(IDS, examples, np.arange(2), RowLayout(10, SPECIAL))
    assert features["input_ids"].tolist() == [[1, 10, 11, 12, 2, 14, 15, 16, 17, 2]]
    assert features["input_mask"].all()


def test_layout_of_full_sentences():
    parts = np.array([[0, 2], [7, 8], [2, 5], [19, 20]])
    examples = ExampleSpans(parts, np.array([0, 2, 3, 4]), np.zeros(3, int))
    features = lay_out(IDS, examples, np.arange(4), RowLayout(7, SPECIAL, has_segments=False))
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
        RowLayout(12, SPECIAL, packed_slots=3),
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
