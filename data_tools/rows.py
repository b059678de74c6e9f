"""Packs examples into rows if several may share a row, and lays the rows out before masking.

row: [CLS] part [SEP] part [SEP] ... padding; in a packed row, several examples before padding
"""

import numpy as np

from data_tools.pairs import ExampleSpans, ranges

# --- packing ---

WINDOW = 1024  # examples; a window of twice the size saves less than 1% of the rows


def pack_examples(
    lengths: np.ndarray,
    num_predictions: np.ndarray,
    max_seq_length: int,
    max_predictions_per_seq: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Packs examples into rows of S tokens and P predictions, in random order.

    Examples in random order are packed one window at a time, from the longest to the shortest. Each
    is placed in the fullest row that has room for its tokens and its predictions (best fit).

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


# --- layout ---


def lay_out(
    ids: np.ndarray,
    examples: ExampleSpans,
    row_starts: np.ndarray,
    max_seq_length: int,
    special_ids: tuple[int, int, int],
    has_segments: bool = True,
    packed_slots: int | None = None,
) -> dict[str, np.ndarray]:
    """Creates the features of a batch of n rows.

    A row is a sequence of runs: one for each part with its special tokens, and one of padding. A
    value that is constant in a run, such as the segment id, is repeated by the length of the run.

    Args:
        ids: int32 [T], the token ids of the documents.
        examples: the examples of the batch, row by row.
        row_starts: int64 [n + 1], the first example of each row, then the number of examples. The
            examples of a row must fit in S tokens.
        max_seq_length: S.
        special_ids: ids of [CLS], [SEP] and [PAD].
        has_segments: whether the second part of an example has segment id 1, otherwise 0.
        packed_slots: K, the maximum number of examples per packed row; None without packing.

    Returns:
        input_ids int32 [n, S]; input_mask and segment_ids uint8 [n, S]; next_sentence_labels int64
        [n, 1]. With packing, also position_ids and example_ids int32 [n, S],
        next_sentence_positions int64 [n, K], next_sentence_weights float32 [n, K], and
        next_sentence_labels int64 [n, K] instead of [n, 1].
    """
    num_rows = len(row_starts) - 1
    first_part, num_parts = examples.first_part, np.diff(examples.first_part)
    text_length = examples.parts[:, 1] - examples.parts[:, 0]
    is_first = np.zeros(len(text_length), bool)
    is_first[first_part[:-1]] = True
    run_length = text_length + 1 + is_first  # one [SEP], and [CLS] for a first part

    # Every row ends with a run of padding, possibly empty.
    row_end = first_part[row_starts[1:]]
    row_of_part = np.repeat(np.arange(num_rows), np.diff(first_part[row_starts]))
    run_of_part = np.arange(len(text_length)) + row_of_part
    lengths = np.zeros(len(text_length) + num_rows, np.int64)
    lengths[run_of_part] = run_length
    used = np.concatenate([[0], np.cumsum(run_length)])
    row_length = np.diff(used[np.append(0, row_end)])
    lengths[row_end + np.arange(num_rows)] = max_seq_length - row_length
    run_end = np.cumsum(lengths)[run_of_part]  # in the flattened batch

    def along_runs(values: np.ndarray, dtype: type) -> np.ndarray:
        """Repeats one value per part along its run, with 0 for padding: [n * S]."""
        of_run = np.zeros(len(lengths), dtype)
        of_run[run_of_part] = values
        return np.repeat(of_run, lengths)

    cls_id, sep_id, pad_id = special_ids
    column = np.arange(max_seq_length, dtype=np.int32)
    input_mask = column < row_length[:, None]
    source = along_runs(examples.parts[:, 1] - (run_end - 1), np.int64)
    source += np.arange(num_rows * max_seq_length)
    input_ids = ids.take(source, mode="clip")  # special tokens and padding are set below
    run_start = run_end - run_length
    cls_at = run_start[first_part[:-1]]
    input_ids[~input_mask.ravel()] = pad_id
    input_ids[cls_at] = cls_id
    input_ids[run_end - 1] = sep_id

    shape = (num_rows, max_seq_length)
    segment = ~is_first if has_segments else np.zeros_like(is_first)
    features = {
        "input_ids": input_ids.reshape(shape),
        "input_mask": input_mask.view(np.uint8),
        "segment_ids": along_runs(segment, np.uint8).reshape(shape),
    }
    if packed_slots is None:
        return features | {"next_sentence_labels": examples.labels[:, None]}

    row_of_example = np.repeat(np.arange(num_rows), np.diff(row_starts))
    number = np.arange(len(examples)) - row_starts[row_of_example]  # index of example in its row
    cls_column = cls_at - row_of_example * max_seq_length
    position_ids = column - along_runs(np.repeat(cls_column, num_parts), np.int32).reshape(shape)
    features["position_ids"] = np.where(input_mask, position_ids, 0)
    features["example_ids"] = along_runs(np.repeat(number + 1, num_parts), np.int32).reshape(shape)
    slot = row_of_example * packed_slots + number
    for name, values in {
        "next_sentence_labels": examples.labels,
        "next_sentence_positions": cls_column,
        "next_sentence_weights": np.ones(len(examples), np.float32),
    }.items():
        flat = np.zeros(num_rows * packed_slots, values.dtype)
        flat[slot] = values
        features[name] = flat.reshape(num_rows, packed_slots)
    return features
