"""Fits long texts into the window of a model: as a head and a tail, or as several windows.

    tokens         a b c d e f g h i j            10 tokens, room for 4
    head_and_tail  a h i j                        1 in the head, 3 in the tail
    windows        a b c d   c d e f   e f g h   g h i j      stride 2

Texts that fit keep all their tokens, in one window. B texts, n windows.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.text.offsets import row_ids
from keras_bert.text.padding import combine_segments

# The maximum number of tokens that the windows of one call have together. `make_text_windows`
# needs about 50 bytes for each, and counts them in int32.
MAX_WINDOW_TOKENS = 2**23
_HEAD_SHARE = 4  # The head has one in four tokens: 128 of 510 in Sun et al. 2019, section 5.3.1.


class TooManyTokens(InputError):
    """The windows of some texts have too many tokens for one call."""


class TextWindows(NamedTuple):
    """The windows of texts, grouped by text; each text has at least one.

    Attributes:
        input_ids: ragged int32 [n, (S)], with [CLS] and [SEP].
        segment_ids: ragged int32 [n, (S)], 0.
        truncated: bool [B], whether tokens of the text were removed; always false.
        text: int32 [n], the index of the text of each window, in increasing order.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    truncated: tf.Tensor
    text: tf.Tensor


def count_windows(sizes: tf.Tensor, room: int | tf.Tensor, stride: int | tf.Tensor) -> tf.Tensor:
    """Returns the number of windows of each text, int32 [B], from its number of tokens, int32 [B].

    A window has `room` tokens, and starts `stride` tokens after the one before it.
    """
    # One window, and one more for each stride that is needed to cover the rest of the text.
    return 1 + tf.maximum(-((room - sizes) // stride), 0)


def head_and_tail(tokens: tf.RaggedTensor, room: int) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Removes tokens from the middle of texts, [B, (tokens)], that have more than `room`.

    Returns:
        The remaining tokens, ragged [B, (at most room)], and whether any were removed, bool [B].
    """
    starts, sizes = (tf.cast(of, tf.int32) for of in (tokens.row_starts(), tokens.row_lengths()))
    kept = tf.minimum(sizes, room)
    splits = tf.concat([[0], tf.cumsum(kept)], axis=0)
    row = row_ids(splits)
    place = tf.range(splits[-1]) - tf.gather(splits, row)
    removed = tf.gather(sizes - kept, row)
    place += tf.where(place < room // _HEAD_SHARE, 0, removed)
    values = tf.gather(tokens.values, tf.gather(starts, row) + place)
    shortened = tf.RaggedTensor.from_row_splits(values, tf.cast(splits, tf.int64), validate=False)
    return shortened, sizes > room


def make_text_windows(
    tokens: tf.RaggedTensor,
    *,
    max_seq_length: int,
    stride: int,
    cls_token_id: int,
    sep_token_id: int,
) -> TextWindows:
    """Splits texts, ragged int32 [B, (tokens)], into windows of at most `max_seq_length` tokens.

    `stride` is the number of tokens between the starts of two windows, at most the room for tokens
    in a window, so that each token is in at least one.

    Raises:
        TooManyTokens: the windows have more than MAX_WINDOW_TOKENS tokens in total. In a graph, the
            operation fails instead, with a tf.errors.InvalidArgumentError.
    """
    room = max_seq_length - 2
    starts, sizes = (tf.cast(of, tf.int32) for of in (tokens.row_starts(), tokens.row_lengths()))
    counts = count_windows(sizes, room, stride)
    # All windows of a text but the last are full. int32 would overflow for very long texts.
    more = tf.cast(counts - 1, tf.int64) * (max_seq_length - stride)
    with tf.control_dependencies(_too_many_tokens(tf.cast(sizes + 2, tf.int64) + more)):
        ends = tf.cumsum(counts)
    text = row_ids(tf.concat([[0], ends], axis=0))
    offset = stride * (tf.range(tf.size(text)) - tf.gather(ends - counts, text))
    length = tf.minimum(tf.gather(sizes, text) - offset, room)
    first = tf.gather(starts, text) + offset
    splits = tf.concat([[0], tf.cumsum(length)], axis=0)
    window = row_ids(splits)
    place = tf.range(splits[-1]) - tf.gather(splits, window) + tf.gather(first, window)
    parts = tf.RaggedTensor.from_row_splits(
        tf.gather(tokens.values, place), tf.cast(splits, tf.int64), validate=False
    )
    segments = combine_segments(
        parts,
        max_seq_length=max_seq_length,
        cls_token_id=cls_token_id,
        sep_token_id=sep_token_id,
    )
    return TextWindows(
        segments.input_ids, segments.segment_ids, tf.zeros_like(sizes, tf.bool), text
    )


def _too_many_tokens(window_tokens: tf.Tensor) -> list[tf.Operation]:
    """Rejects texts by the number of tokens in their windows, int64 [B].

    Returns:
        The operations that reject the texts in a graph.
    """
    total = tf.reduce_sum(window_tokens)
    problem = (
        f"long_text=windows: the windows of the texts have more than {MAX_WINDOW_TOKENS} tokens; "
        "expected shorter texts, or a larger window_stride"
    )
    if not tf.executing_eagerly():
        is_allowed = tf.debugging.assert_less_equal(
            total, tf.constant(MAX_WINDOW_TOKENS, tf.int64), problem
        )
        return [is_allowed]
    if total > MAX_WINDOW_TOKENS:
        raise TooManyTokens(problem)
    return []
