"""Questions and contexts -> windows of pieces, inside the graph.

    [CLS] question [SEP] part of the context [SEP]        segments 0 0 0 1 1

    question, context: strings [B] -> pieces and their bytes -> windows, ragged int32 [n, (S)]

tasks/squad/windows.py in TensorFlow ops, under the same names; a test holds the two equal. Here
every row has a context of its own, and a piece knows its bytes, not its characters. The windows
are laid out as one table [n, S], then its padding is dropped.

B rows, n windows, S pieces of the longest, T pieces in all windows, D pieces in all texts.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_bert.text.tokenizer import BertTokenizer, row_ids


class Windows(NamedTuple):
    """The windows of some questions, a question's own one after the other.

    Attributes:
        input_ids: ragged int32 [n, (S)], as a model reads them.
        segment_ids: ragged int32 [n, (S)].
        question: int32 [n], which row each is of.
        context_at: int32 [n], the place of the context's first piece in the window.
        first_piece: int32 [n], which of the D pieces that is.
        piece_starts: int32 [D], the byte of its text that each piece starts at.
        piece_ends: int32 [D], the byte after its last.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    question: tf.Tensor
    context_at: tf.Tensor
    first_piece: tf.Tensor
    piece_starts: tf.Tensor
    piece_ends: tf.Tensor

    @property
    def lengths(self) -> tf.Tensor:
        """The pieces of each window, int32 [n]."""
        return tf.cast(self.input_ids.row_lengths(), tf.int32)

    @property
    def context_lengths(self) -> tf.Tensor:
        """The pieces of the context in each window, int32 [n]."""
        return self.lengths - self.context_at - 1


def make_windows(
    question: tf.Tensor,
    context: tf.Tensor,
    tokenizer: BertTokenizer,
    max_seq_length: int = 384,
    max_query_length: int = 64,
    doc_stride: int = 128,
) -> Windows:
    """Cuts questions and contexts into pieces and lays windows over them.

    Args:
        question: strings [B].
        context: strings [B].
        tokenizer: of the model's vocabulary.
        max_seq_length: pieces of a window, at least max_query_length + 4.
        max_query_length: pieces of a question; the rest of it is not read.
        doc_stride: pieces from the start of one window to that of the next.

    Returns:
        The windows, at least one a row; every piece of a context is in at least one.
    """
    # All texts in one call, the questions first.
    rows = tf.size(question)
    ids, piece_starts, piece_ends = tokenizer.tokenize_with_offsets(
        tf.concat([question, context], axis=0)
    )
    firsts, sizes = (
        tf.cast(of_texts, tf.int32) for of_texts in (ids.row_starts(), ids.row_lengths())
    )
    queries = tf.minimum(sizes[:rows], max_query_length)
    room = max_seq_length - 3 - queries
    step = tf.minimum(room, doc_stride)
    # One, and as many as the steps that the rest takes.
    counts = 1 + tf.maximum(-((room - sizes[rows:]) // step), 0)

    nth = tf.ragged.range(counts)  # [B, (windows)]
    row = row_ids(nth.row_splits)  # [n]
    offset = nth.values * tf.gather(step, row)
    length = tf.minimum(tf.gather(sizes[rows:], row) - offset, tf.gather(room, row))
    context_at = tf.gather(queries, row) + 2
    first_piece = tf.gather(firsts[rows:], row) + offset

    # The table says which piece stands where; after the D pieces of the texts, [SEP] and [CLS].
    separator = tf.size(ids.values)
    pieces = tf.concat([ids.values, [tokenizer.sep_token_id, tokenizer.cls_token_id]], axis=0)
    lengths = context_at + length + 1
    place = tf.range(_largest_of(lengths))[tf.newaxis]
    at = context_at[:, tf.newaxis]
    of_query = (place >= 1) & (place < at - 1)
    of_context = (place >= at) & (place < lengths[:, tf.newaxis] - 1)
    piece = tf.where(of_context, first_piece[:, tf.newaxis] + place - at, separator)
    first_of_query = tf.gather(firsts[:rows], row)[:, tf.newaxis]
    piece = tf.where(of_query, first_of_query + place - 1, piece)
    piece = tf.where(place == 0, separator + 1, piece)

    real = place < lengths[:, tf.newaxis]
    input_ids = tf.RaggedTensor.from_row_lengths(
        tf.gather(pieces, tf.boolean_mask(piece, real)),
        tf.cast(lengths, tf.int64),
        validate=False,
    )
    segment_ids = tf.cast(tf.boolean_mask(place >= at, real), tf.int32)
    return Windows(
        input_ids,
        input_ids.with_values(segment_ids),
        row,
        context_at,
        first_piece,
        piece_starts.values,
        piece_ends.values,
    )


def max_context(windows: Windows) -> tf.Tensor:
    """Marks each piece of a context in the window that shows most of what is around it.

    The score is the smaller number of pieces to its left or right, plus 0.01 for each piece of
    context in the window; the first window wins a tie (released run_squad).

    Args:
        windows: the windows.

    Returns:
        bool [n, S]: true once for every piece of every context.
    """
    length = windows.context_lengths[:, tf.newaxis]
    count = tf.shape(length)[0]
    place = tf.range(_largest_of(windows.lengths)) - windows.context_at[:, tf.newaxis]
    inside = (place >= 0) & (place < length)
    # In float64, as there: its sums decide the ties.
    score = tf.cast(tf.minimum(place, length - 1 - place), tf.float64)
    score += 0.01 * tf.cast(length, tf.float64)
    # What is no piece of a context goes to a place of its own, after the D.
    nowhere = tf.size(windows.piece_starts)
    piece = tf.where(inside, windows.first_piece[:, tf.newaxis] + place, nowhere)
    best = tf.math.unsorted_segment_max(score, piece, nowhere + 1)
    window = tf.range(count)[:, tf.newaxis]
    winner = tf.where(score == tf.gather(best, piece), window, count)
    owner = tf.math.unsorted_segment_min(winner, piece, nowhere + 1)
    return inside & (tf.gather(owner, piece) == window)


def _largest_of(lengths: tf.Tensor) -> tf.Tensor:
    """Returns the largest length, 0 of none."""
    return tf.maximum(tf.reduce_max(lengths), 0)
