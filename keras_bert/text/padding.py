"""Builds encoder inputs from token ids: adds special tokens and truncates.

    input_ids    [CLS] a1 a2 [SEP] b1 [SEP]
    segment_ids    0   0  0    0   1    1

The ops are from core TensorFlow: TensorFlow Serving 2.18 and 2.19 lack tensorflow-text's trimmers.
"""

from typing import NamedTuple

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
    all_a, a_starts = tf.cast(a.row_lengths(), tf.int32), tf.cast(a.row_starts(), tf.int32)
    tokens = [[cls_token_id, sep_token_id], tf.cast(a.values, tf.int32)]
    if b is None:
        of_a = tf.minimum(all_a, room)
        lengths, truncated = of_a + 2, all_a > room
    else:
        all_b, b_starts = tf.cast(b.row_lengths(), tf.int32), tf.cast(b.row_starts(), tf.int32)
        tokens.append(tf.cast(b.values, tf.int32))
        half: int | tf.Tensor = (room + 1) // 2  # of a
        if truncates_as_transformers:
            half = tf.where(all_a > all_b, half, room // 2)
        of_b = tf.minimum(all_b, tf.maximum(room - all_a, room - half))
        of_a = tf.minimum(all_a, tf.maximum(room - all_b, half))
        lengths, truncated = of_a + of_b + 3, all_a + all_b > room

    # Each position of the result gathers one of `tokens`. The indices are computed on whole arrays,
    # because in a batch of one text, launching ops takes longer than executing them.
    splits = tf.concat([[0], tf.cumsum(lengths)], axis=0)
    row = tf.repeat(tf.range(tf.size(lengths)), lengths)
    position = tf.range(splits[-1]) - tf.gather(splits, row) - 1  # 0 at the first token of a
    end_a = tf.gather(of_a, row)
    source = tf.where(
        position < 0, 0, tf.where(position < end_a, tf.gather(a_starts, row) + position + 2, 1)
    )
    of_second = position > end_a
    if b is not None:
        position_b = position - end_a - 1  # 0 at the first token of b
        source_b = tf.gather(b_starts, row) + position_b + 2 + tf.size(a.values)
        in_b = of_second & (position_b < tf.gather(of_b, row))
        source = tf.where(in_b, source_b, source)
    values = tf.gather(tf.concat(tokens, axis=0), source), tf.cast(of_second, tf.int32)
    splits = tf.cast(splits, tf.int64)
    ids, segments = (tf.RaggedTensor.from_row_splits(v, splits, validate=False) for v in values)
    return Segments(ids, segments, truncated)
