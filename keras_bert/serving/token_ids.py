"""Removes the padding of token ids in a request, and restores it in the answer.

Padding may be at any position. A row without any token keeps its first position (added if the row
has none). Tokens after the model's max_position_embeddings are ignored.

B rows, S length of a padded row, T tokens of all rows.
"""

import tensorflow as tf

from keras_bert.serving.inputs import same_shape

SPECS = [
    tf.TensorSpec([None, None], tf.int32, name=name)
    for name in ("input_ids", "input_mask", "segment_ids")
]


class Rows:
    """The tokens of padded rows.

    The arguments are int32 [B, S]; input_mask is 1 at tokens and 0 at padding. Only the first
    max_length tokens of a row are kept.

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
        is_empty = tf.cast(self._length == 0, tf.int32)
        input_ids, input_mask, segment_ids = (tf.pad(x, [[0, 0], [0, is_empty]]) for x in inputs)
        self._shape = tf.shape(input_ids)
        mask = input_mask > 0
        # At least one token per row, and at most max_length.
        first = tf.range(self._shape[1]) == 0
        mask |= first & ~tf.reduce_any(mask, axis=1, keepdims=True)
        mask &= tf.cumsum(tf.cast(mask, tf.int32), axis=1) <= max_length
        self._positions = tf.where(mask)
        lengths = tf.reduce_sum(tf.cast(mask, tf.int64), axis=1)
        self.input_ids, self.segment_ids = (
            tf.RaggedTensor.from_row_lengths(tf.boolean_mask(x, mask), lengths, validate=False)
            for x in (input_ids, segment_ids)
        )

    def padded(self, values: tf.Tensor) -> tf.Tensor:
        """Scatters values of tokens to padded rows, 0 elsewhere: [T, ...] -> [B, S, ...]."""
        shape = tf.concat([self._shape, tf.shape(values)[1:]], axis=0)
        padded = tf.scatter_nd(self._positions, values, tf.cast(shape, tf.int64))
        return tf.ensure_shape(padded[:, : self._length], [None, None, *values.shape[1:]])
