"""Removes the padding of token ids that a client sent, and restores it in the answer.

In: input_ids, input_mask, segment_ids, int32 [B, S] each. Out: ids and segments, ragged [B, (S)].
Padding may be anywhere; a row without a single piece keeps its first place, which it is given if
it has none, and what lies beyond the model's positions is not read.

B rows, S places of a row, T pieces of all.
"""

import tensorflow as tf

from keras_bert.serving.inputs import same_shape

SPECS = [
    tf.TensorSpec([None, None], tf.int32, name=name)
    for name in ("input_ids", "input_mask", "segment_ids")
]


class Rows:
    """The real pieces of padded rows.

    Args:
        input_ids: int32 [B, S].
        input_mask: int32 [B, S], 1 for a real piece, 0 for padding.
        segment_ids: int32 [B, S].
        max_length: the model's positions.

    Attributes:
        input_ids: ragged int32 [B, (S)].
        segment_ids: ragged int32 [B, (S)].
    """

    def __init__(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        max_length: int,
    ):
        inputs = same_shape(input_ids=input_ids, input_mask=input_mask, segment_ids=segment_ids)
        self._length = tf.shape(inputs[0])[1]
        no_place = tf.cast(self._length == 0, tf.int32)
        input_ids, input_mask, segment_ids = (tf.pad(x, [[0, 0], [0, no_place]]) for x in inputs)
        self._shape = tf.shape(input_ids)
        mask = input_mask > 0
        # At least one piece a row, and at most max_length.
        first = tf.range(self._shape[1]) == 0
        mask |= first & ~tf.reduce_any(mask, axis=1, keepdims=True)
        mask &= tf.cumsum(tf.cast(mask, tf.int32), axis=1) <= max_length
        self._places = tf.where(mask)
        lengths = tf.reduce_sum(tf.cast(mask, tf.int64), axis=1)
        self.input_ids, self.segment_ids = (
            tf.RaggedTensor.from_row_lengths(tf.boolean_mask(x, mask), lengths, validate=False)
            for x in (input_ids, segment_ids)
        )

    def padded(self, values: tf.Tensor) -> tf.Tensor:
        """Puts what belongs to the pieces back to their places: [T, ...] -> [B, S, ...]; else 0."""
        shape = tf.concat([self._shape, tf.shape(values)[1:]], axis=0)
        padded = tf.scatter_nd(self._places, values, tf.cast(shape, tf.int64))
        return tf.ensure_shape(padded[:, : self._length], [None, None, *values.shape[1:]])
