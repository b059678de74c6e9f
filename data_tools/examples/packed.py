"""Packs sequences: assigns several short examples to one row.

Examples in random order are packed one window at a time, from the longest to the shortest. Each is
placed in the fullest row that has room for its tokens and its predictions (best fit). The rows are
returned in random order.
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
    """Packs examples into rows of S tokens and P predictions, in random order.

    Args:
        lengths: int64 [n], number of tokens of each example, at most S.
        num_predictions: int64 [n], number of predicted tokens of each example, 1 to P.
        max_seq_length: S.
        max_predictions_per_seq: P.
        rng: the random number generator.

    Returns:
        order int64 [n], the example indices row by row; row_starts int64 [rows + 1], the start of
        each row in `order`, then n.
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
    """Packs one window of examples into rows; returns the example indices of each row.

    `examples` are the indices of the examples, sorted by decreasing length. `lengths` and
    `num_predictions` are in the same order.
    """
    rows: list[list[int]] = []
    predictions_left: list[int] = []
    # with_room[r] lists the rows with room for r more tokens, and bit r of `rooms` is set if there
    # are any. After a right shift by a length, the lowest set bit is the smallest sufficient room.
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
