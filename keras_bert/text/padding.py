"""Builds encoder inputs from token ids: adds special tokens, truncates and pads.

    input_ids    [CLS] a1 a2 [SEP] b1 [SEP] [PAD] [PAD]
    input_mask     1   1  1    1   1    1     0     0
    segment_ids    0   0  0    0   1    1     0     0

Only core TensorFlow ops are used: TensorFlow Serving 2.18 and 2.19 lack tensorflow-text's trimmers.
"""

import tensorflow as tf

from keras_bert.common.errors import InputError


def combine_segments(
    a: tf.RaggedTensor,
    b: tf.RaggedTensor | None = None,
    *,
    max_seq_length: int,
    cls_token_id: int,
    sep_token_id: int,
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Combines one or two segments with [CLS] and [SEP], truncated to a maximum length.

    Tokens are removed from the end of a segment. In a pair they are removed one by one from the
    longer segment, and from b if both are equally long (Devlin et al. 2019, released
    run_classifier).

    Args:
        a: token ids of the first segment, ragged int32 [B, (tokens)].
        b: token ids of the second segment, or None.
        max_seq_length: the maximum number of tokens in a row, special tokens included.
        cls_token_id: the id of [CLS].
        sep_token_id: the id of [SEP].

    Returns:
        The token ids and the segment ids (1 on b and its [SEP]), each ragged int32 [B, (S)].

    Raises:
        InputError: max_seq_length has no room for one token per segment.
    """
    room = max_seq_length - (2 if b is None else 3)
    if room < (1 if b is None else 2):
        raise InputError(
            f"max_seq_length: expected at least {3 if b is None else 5} for "
            f"{'a pair' if b is not None else 'one text'}, got {max_seq_length}"
        )
    of_a, a_starts = tf.cast(a.row_lengths(), tf.int32), tf.cast(a.row_starts(), tf.int32)
    tokens = [[cls_token_id, sep_token_id], tf.cast(a.values, tf.int32)]
    if b is None:
        of_a = tf.minimum(of_a, room)
        lengths = of_a + 2
    else:
        all_b, b_starts = tf.cast(b.row_lengths(), tf.int32), tf.cast(b.row_starts(), tf.int32)
        tokens.append(tf.cast(b.values, tf.int32))
        of_b = tf.minimum(all_b, tf.maximum(room - of_a, room // 2))
        of_a = tf.minimum(of_a, tf.maximum(room - all_b, (room + 1) // 2))
        lengths = of_a + of_b + 3

    # Each position of the result gathers one of `tokens`. The indices are computed on whole arrays,
    # because in a batch of one text, launching ops takes longer than executing them.
    splits = tf.concat([[0], tf.cumsum(lengths)], axis=0)
    row = tf.repeat(tf.range(tf.size(lengths)), lengths)
    place = tf.range(splits[-1]) - tf.gather(splits, row) - 1  # 0 at the first token of a
    end_a = tf.gather(of_a, row)
    source = tf.where(
        place < 0, 0, tf.where(place < end_a, tf.gather(a_starts, row) + place + 2, 1)
    )
    of_second = place > end_a
    if b is not None:
        place_b = place - end_a - 1  # 0 at the first token of b
        source_b = tf.gather(b_starts, row) + place_b + 2 + tf.size(a.values)
        in_b = of_second & (place_b < tf.gather(of_b, row))
        source = tf.where(in_b, source_b, source)
    values = tf.gather(tf.concat(tokens, axis=0), source), tf.cast(of_second, tf.int32)
    splits = tf.cast(splits, tf.int64)
    ids, segments = (tf.RaggedTensor.from_row_splits(v, splits, validate=False) for v in values)
    return ids, segments


def pad_segments(
    a: tf.RaggedTensor,
    b: tf.RaggedTensor | None = None,
    *,
    max_seq_length: int,
    cls_token_id: int,
    sep_token_id: int,
    pad_token_id: int = 0,
) -> dict[str, tf.Tensor]:
    """Combines one or two segments like `combine_segments` and pads them to `max_seq_length`.

    The arguments and errors are those of `combine_segments`; `pad_token_id` is the id of [PAD].
    Returns `input_ids`, `input_mask` (1 on tokens) and `segment_ids` (1 on b and its [SEP]), each
    int32 [B, S].
    """
    ids, segments = combine_segments(
        a,
        b,
        max_seq_length=max_seq_length,
        cls_token_id=cls_token_id,
        sep_token_id=sep_token_id,
    )
    shape = [None, max_seq_length]
    return {
        "input_ids": ids.to_tensor(pad_token_id, shape=shape),
        "input_mask": tf.ones_like(ids).to_tensor(0, shape=shape),
        "segment_ids": segments.to_tensor(0, shape=shape),
    }
