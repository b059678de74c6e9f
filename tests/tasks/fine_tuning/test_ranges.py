"""Tests row splits, ranges and masks of rows with different lengths."""

import numpy as np

from keras_bert.tasks.fine_tuning.ranges import ranges, row_splits, sequence_mask

LENGTHS = np.array([2, 0, 3])


def test_each_row_starts_at_the_end_of_the_previous_row():
    assert row_splits(LENGTHS).tolist() == [0, 2, 2, 5]
    assert row_splits(LENGTHS[:0]).tolist() == [0]
    assert row_splits(LENGTHS.astype(np.int32)).dtype == np.int64


def test_ranges_are_concatenated_and_count_up_from_each_start():
    assert ranges(np.array([5, 7, 9]), LENGTHS).tolist() == [5, 6, 9, 10, 11]
    assert ranges(0, LENGTHS).tolist() == [0, 1, 0, 1, 2]
    assert ranges(np.zeros([0], int), LENGTHS[:0]).tolist() == []


def test_mask_selects_the_positions_of_the_ranges():
    mask = sequence_mask(LENGTHS, 4)
    assert mask.astype(int).tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]
    padded = np.full([3, 4], -1)
    padded[mask] = ranges(row_splits(LENGTHS)[:-1], LENGTHS)
    assert padded[mask].tolist() == [0, 1, 2, 3, 4]
    assert padded[2].tolist() == [2, 3, 4, -1]
