"""Rows of different lengths on whole arrays: where they start, their places, their masks.

lengths [2, 3]                  row_splits     0 2 5, the last one where the rows end
starts [5, 9], lengths [2, 3]   ranges         5 6 9 10 11
lengths [2, 3], width 4         sequence_mask  1 1 0 0 / 1 1 1 0
"""

import numpy as np


def row_splits(lengths: np.ndarray) -> np.ndarray:
    """Says where rows that lie one after the other start and end.

    Args:
        lengths: int [n].

    Returns:
        int64 [n + 1]: row i lies from the i-th to the next.
    """
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def ranges(starts: np.ndarray | int, lengths: np.ndarray) -> np.ndarray:
    """Lists the places of ranges, one range after the other.

    Args:
        starts: int [n], or one start for all: 0 counts up within each row.
        lengths: int [n].

    Returns:
        int64 [sum of lengths].
    """
    splits = row_splits(lengths)
    return np.arange(splits[-1]) + np.repeat(starts - splits[:-1], lengths)


def sequence_mask(lengths: np.ndarray, width: int) -> np.ndarray:
    """Marks what is no padding in padded rows.

    Args:
        lengths: int [n], none over `width`.
        width: the columns.

    Returns:
        bool [n, width]; its true places, row by row, are those of `ranges`.
    """
    return np.arange(width) < lengths[:, np.newaxis]
