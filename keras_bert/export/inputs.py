"""Checks the inputs of a signature in the graph, and removes the padding of token ids.

The checks are assertions in the graph of an exported model; `failed_check` extracts the text of one
that failed. B rows, S length of a padded row, T kept tokens of all rows.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_bert.config import BertConfig

TOKEN_ID_SPECS = [
    tf.TensorSpec([None, None], tf.int32, name=name)
    for name in ("input_ids", "input_mask", "segment_ids")
]


def same_shape(**inputs: tf.Tensor) -> list[tf.Tensor]:
    """Returns the inputs; the graph fails with an InvalidArgumentError if their shapes differ.

    Use the results in place of the arguments, because they depend on the check. Without the check,
    TensorFlow would silently broadcast one row against many.
    """
    (name, first), *rest = inputs.items()
    shape = tf.shape(first)
    checks = []
    for other, value in rest:
        got = tf.shape(value)
        message = f"{other} and {name}: expected equal shapes, got"
        checks.append(tf.debugging.Assert(tf.reduce_all(got == shape), [message, got, shape]))
    with tf.control_dependencies(checks):
        return [tf.identity(value) for value in inputs.values()]


def in_range(size: int, **inputs: tf.Tensor) -> list[tf.Tensor]:
    """Returns the inputs; the graph fails with an InvalidArgumentError if a value is out of range.

    The range is 0 to `size` - 1. Use the results in place of the arguments, because they depend on
    the check. Without it, TensorFlow fails on a CPU with a message that does not name the input,
    and on a GPU it gathers zeros for such ids.
    """
    checks = []
    for name, value in inputs.items():
        # An empty tensor passes: its minimum is the largest integer, its maximum the smallest.
        lowest, highest = tf.reduce_min(value), tf.reduce_max(value)
        message = f"{name}: expected values from 0 to {size - 1}, got"
        wrong = tf.where(lowest < 0, lowest, highest)
        checks.append(tf.debugging.Assert((lowest >= 0) & (highest < size), [message, wrong]))
    with tf.control_dependencies(checks):
        return [tf.identity(value) for value in inputs.values()]


def failed_check(message: str) -> str:
    """Returns the text and the values of the assertion that failed in a graph.

    Args:
        message: the message of a tf.errors.OpError.

    Returns:
        The text in one line, without TensorFlow's condition and names of nodes; "" if no assertion
        failed.
    """
    # "... assertion failed: [text] [value] [Condition x <= y did not hold ...] ...\n ..."
    line = message.partition("assertion failed: [")[2].partition("\n")[0]
    text, separator, values = line.partition(" [Condition ")[0].partition("] [")
    return f"{text} [{values}" if separator else text.removesuffix("]")


class UnpaddedRows(NamedTuple):
    """The rows of a request without padding, as `of_request` creates them.

    Attributes:
        input_ids: ragged int32 [B, (S)], at most the first max_position_embeddings tokens of a row.
        segment_ids: ragged int32 [B, (S)].
        truncated: bool [B], whether the row has more than max_position_embeddings tokens.
        positions: int64 [T, 2], the row and the column of each kept token in the request.
        shape: int32 [2], the shape of the request, with at least one column.
        length: int32, the number of columns of the request.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    truncated: tf.Tensor
    positions: tf.Tensor
    shape: tf.Tensor
    length: tf.Tensor

    @classmethod
    def of_request(
        cls,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        config: BertConfig,
    ) -> "UnpaddedRows":
        """Removes the padding of a request.

        The arguments input_ids, input_mask and segment_ids are int32 [B, S]. Padding (input_mask 0)
        may be at any position. A row of only padding keeps the token at its first position; if S is
        0, a token with id 0 is added to it.

        The graph fails with an InvalidArgumentError if the shapes differ, a value of the mask is
        neither 0 nor 1, or the id or segment id of a kept token is out of range.
        """
        inputs = same_shape(input_ids=input_ids, input_mask=input_mask, segment_ids=segment_ids)
        [inputs[1]] = in_range(2, input_mask=inputs[1])
        length = tf.shape(inputs[0])[1]
        is_empty = tf.cast(length == 0, tf.int32)
        input_ids, input_mask, segment_ids = (tf.pad(x, [[0, 0], [0, is_empty]]) for x in inputs)
        shape = tf.shape(input_ids)
        mask = input_mask > 0
        # At least one token per row, and at most max_position_embeddings.
        first = tf.range(shape[1]) == 0
        mask |= first & ~tf.reduce_any(mask, axis=1, keepdims=True)
        counts = tf.cumsum(tf.cast(mask, tf.int32), axis=1)
        truncated = counts[:, -1] > config.max_position_embeddings
        mask &= counts <= config.max_position_embeddings
        positions = tf.where(mask)
        lengths = tf.reduce_sum(tf.cast(mask, tf.int64), axis=1)
        tokens = in_range(config.vocab_size, input_ids=tf.gather_nd(input_ids, positions))
        tokens += in_range(config.type_vocab_size, segment_ids=tf.gather_nd(segment_ids, positions))
        ragged = (
            tf.RaggedTensor.from_row_lengths(values, lengths, validate=False) for values in tokens
        )
        return cls(*ragged, truncated, positions, shape, length)

    def padded(self, values: tf.Tensor) -> tf.Tensor:
        """Scatters values of the kept tokens to padded rows of zeros: [T, ...] -> [B, S, ...]."""
        shape = tf.concat([self.shape, tf.shape(values)[1:]], axis=0)
        padded = tf.scatter_nd(self.positions, values, tf.cast(shape, tf.int64))
        return tf.ensure_shape(padded[:, : self.length], [None, None, *values.shape[1:]])
