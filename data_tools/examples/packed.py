"""Sequence packing: assigns several short examples to one row.

Examples in random order are packed one window at a time, best fit in order of decreasing length: an
example is placed in the fullest row that still has room for its tokens and its predictions. The
rows are returned in random order.
"""

import numpy as np

from data_tools.examples.instances import ranges

WINDOW = 1024  # examples; a window of twice the size saves less than 1% of the rows


def pack_examples(
    lengths: np.ndarray,
    num_predictions: np.ndarray,
    max_seq_length: int,
    max_predictions_per_seq: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Packs examples into rows of S tokens and P predictions.

    Args:
        lengths: int64 [n], tokens of each example, at most S.
        num_predictions: int64 [n], predicted tokens of each example, 1 to P.
        max_seq_length: S.
        max_predictions_per_seq: P.
        rng: the random number generator for the order of the rows.

    Returns:
        order int64 [n], the example indices row by row; row_starts int64 [rows + 1], the start of
        each row in `order`, with n as the last value.
    """
    rows: list[list[int]] = []
    for start in range(0, len(lengths), WINDOW):
        window = slice(start, start + WINDOW)
        by_length = np.argsort(-lengths[window], kind="stable")
        rows += _pack_window(
            (start + by_length).tolist(),
            lengths[window][by_length].tolist(),
            num_predictions[window][by_length].tolist(),
            max_seq_length,
            max_predictions_per_seq,
        )
    row_lengths = np.array([len(row) for row in rows], np.int64)
    starts = np.cumsum(row_lengths) - row_lengths
    shuffled = np.argsort(rng.random(len(rows)), kind="stable")
    examples = np.array([example for row in rows for example in row], np.int64)
    order = examples[ranges(starts[shuffled], row_lengths[shuffled])]
    return order, np.concatenate([[0], np.cumsum(row_lengths[shuffled])])


def _pack_window(
    examples: list[int],
    lengths: list[int],
    num_predictions: list[int],
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> list[list[int]]:
    """Packs one window of examples, which must be sorted by decreasing length."""
    rows: list[list[int]] = []
    predictions_left: list[int] = []
    # The rows by their free room. Bit r of `rooms` is set if some row has free room r, so after
    # shifting right by a length, the lowest set bit is the smallest room that is sufficient.
    with_room: list[list[int]] = [[] for _ in range(max_seq_length + 1)]
    rooms = 0
    for example, length, needed in zip(examples, lengths, num_predictions, strict=True):
        enough = rooms >> length
        while enough:
            lowest = enough & -enough
            room = length + lowest.bit_length() - 1
            if predictions_left[with_room[room][-1]] >= needed:
                row = with_room[room].pop()
                if not with_room[room]:
                    rooms ^= 1 << room
                break
            enough ^= lowest
        else:
            row, room = len(rows), max_seq_length
            rows.append([])
            predictions_left.append(max_predictions_per_seq)
        rows[row].append(example)
        predictions_left[row] -= needed
        if predictions_left[row]:
            with_room[room - length].append(row)
            rooms |= 1 << (room - length)
    return rows
