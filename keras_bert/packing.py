"""Word pieces -> the three inputs of an encoder: `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.

In: ragged int32 ids of one or two sides, [B, (pieces)]. Out: int32 [B, S] each:

    input_ids    [CLS] a1 a2 [SEP] b1 [SEP] [PAD] [PAD]
    input_mask     1   1  1    1   1    1     0     0
    segment_ids    0   0  0    0   1    1     0     0

Core TensorFlow ops only: TensorFlow Serving 2.18 and 2.19 lack tensorflow-text's trimmers.
"""

import tensorflow as tf

from keras_bert.errors import InputError


def pack(
    a: tf.RaggedTensor,
    b: tf.RaggedTensor | None = None,
    *,
    max_seq_length: int,
    cls_token_id: int,
    sep_token_id: int,
    pad_token_id: int = 0,
) -> dict[str, tf.Tensor]:
    """Joins one or two sides and cuts or pads them to one length.

    What does not fit is lost from the end: a pair's longer side gives way, piece by piece, and b
    where both are as long (Devlin et al. 2019, released run_classifier).

    Args:
        a: ids of the first side, ragged int32 [B, (pieces)].
        b: ids of the second side, or None.
        max_seq_length: S.
        cls_token_id: the id of [CLS].
        sep_token_id: the id of [SEP].
        pad_token_id: the id of [PAD].

    Returns:
        `input_ids`, `input_mask` (1 on real pieces) and `segment_ids` (1 on b and its [SEP]), each
        int32 [B, S].

    Raises:
        InputError: max_seq_length has no room for one piece a side.
    """
    sides = [a] if b is None else [a, b]
    room = max_seq_length - 1 - len(sides)
    if room < len(sides):
        raise InputError(
            f"max_seq_length: expected at least {1 + 2 * len(sides)} for "
            f"{'a pair' if b is not None else 'one text'}, got {max_seq_length}"
        )
    if b is None:
        sides = [a[:, :room]]
    else:
        of_a, of_b = a.row_lengths(), b.row_lengths()
        sides = [
            _first(a, tf.maximum(room - of_b, (room + 1) // 2)),
            _first(b, tf.maximum(room - of_a, room // 2)),
        ]

    batch_size = a.nrows()
    cls = tf.fill([batch_size, 1], tf.cast(cls_token_id, a.dtype))
    sep = tf.fill([batch_size, 1], tf.cast(sep_token_id, a.dtype))
    segments = [tf.concat([cls, sides[0], sep], axis=1)]
    segments += [tf.concat([side, sep], axis=1) for side in sides[1:]]

    def dense(rows: list[tf.RaggedTensor], padding: int) -> tf.Tensor:
        joined = tf.cast(tf.concat(rows, axis=1), tf.int32)
        return joined.to_tensor(padding, shape=[None, max_seq_length])

    return {
        "input_ids": dense(segments, pad_token_id),
        "input_mask": dense([tf.ones_like(rows) for rows in segments], 0),
        "segment_ids": dense([tf.zeros_like(rows) + i for i, rows in enumerate(segments)], 0),
    }


def _first(pieces: tf.RaggedTensor, counts: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first `counts[b]` pieces of row b."""
    positions = tf.ragged.range(pieces.row_lengths())
    return tf.ragged.boolean_mask(pieces, positions < counts[:, tf.newaxis])
