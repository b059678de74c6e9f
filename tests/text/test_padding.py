"""Segments [CLS] a [SEP] (b [SEP]): truncation and segment ids."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.text.padding import NUMPY, combine_segments, gather_segments

CLS, SEP = 101, 102


def combined(a, b=None, length=8, **options):
    sides = [tf.ragged.constant(side, tf.int32, ragged_rank=1) for side in (a, b) if side]
    special = {"cls_token_id": CLS, "sep_token_id": SEP}
    return combine_segments(*sides, max_seq_length=length, **special, **options)


def test_pairs_are_truncated_one_token_at_a_time_from_the_longer_segment():
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 14, size=(300, 2))
    for length in (5, 8, 9, 16):
        a = [list(range(100, 100 + n)) for n, _ in lengths]
        b = [list(range(200, 200 + n)) for _, n in lengths]
        segments = combined(a, b, length)
        expected, truncated = [], []
        for left, right in zip(a, b, strict=True):
            left, right = list(left), list(right)
            truncated.append(len(left) + len(right) > length - 3)
            while len(left) + len(right) > length - 3:
                (left if len(left) > len(right) else right).pop()
            expected.append([CLS, *left, SEP, *right, SEP])
        assert segments.input_ids.to_list() == expected
        assert segments.truncated.numpy().tolist() == truncated
    single = combined([[*range(6)], [*range(7)], []])
    assert single.input_ids.to_list() == [[CLS, *range(6), SEP]] * 2 + [[CLS, SEP]]
    assert single.truncated.numpy().tolist() == [False, True, False]


@pytest.mark.parametrize("truncates_as_transformers", [False, True])
@pytest.mark.parametrize("room", [2, 5, 8])
def test_numpy_gives_the_rows_of_tensorflow(truncates_as_transformers, room):
    rng = np.random.default_rng(room)
    sides = []
    for _ in range(2):
        lengths = rng.integers(0, 9, 200).astype(np.int32)
        values = rng.integers(1000, 2000, lengths.sum()).astype(np.int32)
        sides.append((values, (np.cumsum(lengths) - lengths).astype(np.int32), lengths))
    for a, b in (sides, [sides[0], None]):
        options = {"truncates_as_transformers": truncates_as_transformers}
        expected = gather_segments(a, b, room, [CLS, SEP], **options)
        for value, right in zip(
            gather_segments(a, b, room, np.array([CLS, SEP], np.int32), ops=NUMPY, **options),
            expected,
            strict=True,
        ):
            np.testing.assert_array_equal(value, right)


def test_longer_segment_has_one_more_token_as_in_transformers():
    lengths = [(3, 3), (4, 4), (4, 6), (6, 4), (2, 7), (7, 2), (7, 7)]
    # Those of the package tokenizers 0.23.3 with `longest_first`.
    expected = [(2, 3), (2, 3), (2, 3), (3, 2), (2, 3), (3, 2), (2, 3)]
    a, b = ([[7 + i] * pair[i] for pair in lengths] for i in (0, 1))
    segments = combined(a, b, truncates_as_transformers=True)
    assert [(row.count(7), row.count(8)) for row in segments.input_ids.to_list()] == expected
    assert combined(
        [[7] * 3], [[8] * 2], truncates_as_transformers=True
    ).truncated.numpy().tolist() == [False]
