"""Builds encoder inputs from token ids: adds special tokens and truncates.

    input_ids    [CLS] a1 a2 [SEP] b1 [SEP]
    segment_ids    0   0  0    0   1    1

The ops are from core TensorFlow: TensorFlow Serving 2.18 and 2.19 lack tensorflow-text's trimmers.
Functions with the argument `ops` also run in NumPy, whose calls take less time for a few rows.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError


class Segments(NamedTuple):
    """One or two segments per row, with [CLS] and [SEP].

    `input_ids` and `segment_ids` (1 for the second segment and the [SEP] after it) are ragged int32
    [B, (S)]. `truncated`, bool [B], is whether tokens of the row were removed.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    truncated: tf.Tensor


def combine_segments(
    a: tf.RaggedTensor,
    b: tf.RaggedTensor | None = None,
    *,
    max_seq_length: int,
    cls_token_id: int,
    sep_token_id: int,
    truncates_as_transformers: bool = False,
) -> Segments:
    """Combines one or two segments with [CLS] and [SEP], truncated to `max_seq_length` tokens.

    `a` and `b` are token ids, ragged int32 [B, (tokens)], and are truncated at the end. In a pair,
    tokens are removed one by one from the longer segment, and from b if both are equally long, as
    in the released run_classifier (Devlin et al. 2019). So if both are truncated to an odd number
    of tokens, a has one more. With `truncates_as_transformers`, the one that was longer has one
    more, and b if both were equally long.

    Raises:
        InputError: max_seq_length has no room for one token per segment.
    """
    room = max_seq_length - (2 if b is None else 3)
    if room < (1 if b is None else 2):
        raise InputError(
            f"max_seq_length: expected at least {3 if b is None else 5} for "
            f"{'a pair' if b is not None else 'one text'}, got {max_seq_length}"
        )
    of_a, *of_b = (
        [tf.cast(each, tf.int32) for each in (rows.values, rows.row_starts(), rows.row_lengths())]
        for rows in (a, b)
        if rows is not None
    )
    ids, segments, splits, truncated = gather_segments(
        *(of_a, of_b[0] if of_b else None, room, [cls_token_id, sep_token_id]),
        truncates_as_transformers=truncates_as_transformers,
    )
    splits = tf.cast(splits, tf.int64)
    ids, segments = (
        tf.RaggedTensor.from_row_splits(each, splits, validate=False) for each in (ids, segments)
    )
    return Segments(ids, segments, truncated)


def gather_segments(
    a: Sequence[Any],
    b: Sequence[Any] | None,
    room: int,
    special_ids: Sequence[int],
    truncates_as_transformers: bool = False,
    ops: Any = tf,
) -> tuple[Any, Any, Any, Any]:
    """Implements `combine_segments` on flat int32 arrays, with `ops`: TensorFlow or NUMPY.

    `a` and `b` are the values, the row starts and the row lengths of token ids. `room` is the
    maximum number of tokens without special tokens, and `special_ids` are those of [CLS] and [SEP].

    Returns:
        The input ids and the segment ids of all rows, [T] each; the row splits, [B + 1]; and
        whether tokens of each row were removed, bool [B].
    """
    all_tokens, a_starts, all_a = a
    tokens = [special_ids, all_tokens]
    if b is None:
        of_a = ops.minimum(all_a, room)
        lengths, truncated = of_a + 2, all_a > room
    else:
        b_tokens, b_starts, all_b = b
        tokens.append(b_tokens)
        half = (room + 1) // 2  # of a
        if truncates_as_transformers:
            half = ops.where(all_a > all_b, half, room // 2)
        of_b = ops.minimum(all_b, ops.maximum(room - all_a, room - half))
        of_a = ops.minimum(all_a, ops.maximum(room - all_b, half))
        lengths, truncated = of_a + of_b + 3, all_a + all_b > room

    # Each position of the result gathers one of `tokens`. The indices are computed on whole arrays,
    # because in a batch of one text, launching ops takes longer than executing them.
    splits = ops.concat([[0], ops.cumsum(lengths)], axis=0)
    row = ops.repeat(ops.range(ops.size(lengths)), lengths)
    position = ops.range(splits[-1]) - ops.gather(splits, row) - 1  # 0 at the first token of a
    end_a = ops.gather(of_a, row)
    source = ops.where(
        position < 0, 0, ops.where(position < end_a, ops.gather(a_starts, row) + position + 2, 1)
    )
    of_second = position > end_a
    if b is not None:
        position_b = position - end_a - 1  # 0 at the first token of b
        source_b = ops.gather(b_starts, row) + position_b + 2 + ops.size(all_tokens)
        in_b = of_second & (position_b < ops.gather(of_b, row))
        source = ops.where(in_b, source_b, source)
    ids = ops.gather(ops.concat(tokens, axis=0), source)
    return ids, ops.cast(of_second, np.int32), splits, truncated


def _gather(values: Any, indices: np.ndarray, batch_dims: int = 0) -> np.ndarray:
    if batch_dims:
        return np.take_along_axis(values, indices, axis=batch_dims)
    return np.take(values, indices, axis=0)


def _argsort(values: np.ndarray, direction: str, stable: bool) -> np.ndarray:
    assert direction == "DESCENDING"
    assert stable
    return np.argsort(-values, kind="stable")


def _softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# TensorFlow's functions that are called with `ops`, on arrays of NumPy.
NUMPY = SimpleNamespace(
    argmax=np.argmax,
    argsort=_argsort,
    cast=np.ndarray.astype,
    concat=np.concatenate,
    cumsum=np.cumsum,
    gather=_gather,
    maximum=np.maximum,
    minimum=np.minimum,
    nn=SimpleNamespace(softmax=_softmax),
    range=np.arange,
    repeat=np.repeat,
    sigmoid=lambda values: np.exp(-np.logaddexp(0, -values)),
    size=np.size,
    where=np.where,
)
