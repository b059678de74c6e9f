"""Computes row splits, index ranges and masks for rows of different lengths.

lengths [2, 3]                  row_splits     0 2 5
starts [5, 9], lengths [2, 3]   ranges         5 6 9 10 11
lengths [2, 3], width 4         sequence_mask  1 1 0 0 / 1 1 1 0
"""

import numpy as np


def row_splits(lengths: np.ndarray) -> np.ndarray:
    """Returns the start of each row, followed by the end of the last: lengths [n] -> [n + 1]."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def ranges(starts: np.ndarray | int, lengths: np.ndarray) -> np.ndarray:
    """Concatenates the n index ranges with the given starts and lengths, int [n] each.

    `starts` may also be one start for all rows; 0 gives the index within each row.
    """
    splits = row_splits(lengths)
    return np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths)


def sequence_mask(lengths: np.ndarray, width: int) -> np.ndarray:
    """Returns bool [n, width]: true before each row's length, false at padding."""
    return np.arange(width) < lengths[:, np.newaxis]
