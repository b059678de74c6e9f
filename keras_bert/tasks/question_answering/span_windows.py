"""Splits questions and contexts into overlapping windows of tokens.

    question, context: strings [B] -> tokens with byte offsets -> windows, ragged int32 [n, (S)]

    [CLS] question [SEP] part of the context [SEP]        one window
      0      0       0            1            1          its segment ids

Each distinct context is tokenized once.

B questions, C distinct contexts, D tokens of these contexts, n windows, S tokens of the longest
window, T tokens of all windows.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_bert.tasks.question_answering.settings import AnswerSettings
from keras_bert.text.offsets import row_ids
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.windows import count_windows


class SpanWindows(NamedTuple):
    """The windows of some questions, grouped by question.

    Attributes:
        input_ids: ragged int32 [n, (S)].
        segment_ids: ragged int32 [n, (S)].
        question: int32 [n], the index of the question of each window.
        context_at: int32 [n], the position in the window of its first context token.
        first_token: int32 [n], the index of the window's first context token among the D tokens.
        context: strings [C], distinct.
        context_of: int32 [B], the index of the context of each question.
        token_starts: ragged int32 [C, (tokens)], the byte offset of each token in its context.
        token_ends: ragged int32 [C, (tokens)], the byte offset after each token.
        starts_word: bool [D], whether each token is the first one of a word.
        truncated: bool [B], whether the question was truncated to `max_query_length` tokens.
    """

    input_ids: tf.RaggedTensor
    segment_ids: tf.RaggedTensor
    question: tf.Tensor
    context_at: tf.Tensor
    first_token: tf.Tensor
    context: tf.Tensor
    context_of: tf.Tensor
    token_starts: tf.RaggedTensor
    token_ends: tf.RaggedTensor
    starts_word: tf.Tensor
    truncated: tf.Tensor

    @property
    def lengths(self) -> tf.Tensor:
        """The number of tokens in each window, int32 [n]."""
        return tf.cast(self.input_ids.row_lengths(), tf.int32)

    @property
    def context_lengths(self) -> tf.Tensor:
        """The number of context tokens in each window, int32 [n]."""
        return self.lengths - self.context_at - 1


def make_windows(
    question: tf.Tensor, context: tf.Tensor, tokenizer: BertTokenizer, settings: AnswerSettings
) -> SpanWindows:
    """Tokenizes questions and their contexts, strings [B] each, and splits each pair into windows.

    Each question has at least one window, and each token of its context is in at least one of them.
    """
    # Tokenize all texts in one call, the contexts first.
    context, context_of = tf.unique(context)
    count = tf.size(context)
    ids, token_starts, token_ends = tokenizer.tokenize_with_offsets(
        tf.concat([context, question], axis=0)
    )
    starts, sizes = (
        tf.cast(of_texts, tf.int32) for of_texts in (ids.row_starts(), ids.row_lengths())
    )
    query_starts, truncated = starts[count:], sizes[count:] > settings.max_query_length
    queries = tf.minimum(sizes[count:], settings.max_query_length)
    starts, sizes = (tf.gather(of_contexts, context_of) for of_contexts in (starts, sizes))
    room = settings.max_seq_length - 3 - queries
    step = tf.minimum(room, settings.doc_stride)
    counts = count_windows(sizes, room, step)

    nth = tf.ragged.range(counts)  # [B, (windows)]
    row = row_ids(nth.row_splits)  # [n]
    offset = nth.values * tf.gather(step, row)
    length = tf.minimum(tf.gather(sizes, row) - offset, tf.gather(room, row))
    context_at = tf.gather(queries, row) + 2
    first_token = tf.gather(starts, row) + offset

    # The token indices of the windows as one padded table [n, S]; the padding is removed below.
    # [SEP] and [CLS] have the two indices after the tokens of the texts.
    separator = tf.size(ids.values)
    tokens = tf.concat([ids.values, [tokenizer.sep_token_id, tokenizer.cls_token_id]], axis=0)
    lengths = context_at + length + 1
    place = tf.range(_largest_of(lengths))[tf.newaxis]
    at = context_at[:, tf.newaxis]
    in_query = (place >= 1) & (place < at - 1)
    in_context = (place >= at) & (place < lengths[:, tf.newaxis] - 1)
    token = tf.where(in_context, first_token[:, tf.newaxis] + place - at, separator)
    query_start = tf.gather(query_starts, row)[:, tf.newaxis]
    token = tf.where(in_query, query_start + place - 1, token)
    token = tf.where(place == 0, separator + 1, token)

    real = place < lengths[:, tf.newaxis]
    input_ids = tf.RaggedTensor.from_row_lengths(
        tf.gather(tokens, tf.boolean_mask(token, real)),
        tf.cast(lengths, tf.int64),
        validate=False,
    )
    segment_ids = tf.cast(tf.boolean_mask(place >= at, real), tf.int32)
    return SpanWindows(
        input_ids,
        input_ids.with_values(segment_ids),
        row,
        context_at,
        first_token,
        context,
        context_of,
        token_starts[:count],
        token_ends[:count],
        ~tf.gather(tokenizer.is_continuation, ids[:count].values),
        truncated,
    )


def max_context(windows: SpanWindows) -> tf.Tensor:
    """Marks each context token in the window where it has the most context, bool [n, S].

    A token's score in a window is the smaller of the numbers of context tokens to its left and
    right, plus 0.01 times the number of context tokens in the window. The window with the highest
    score wins, or the first of several, as in Google's run_squad. So every token of a question's
    context is marked once.
    """
    length = windows.context_lengths[:, tf.newaxis]
    count = tf.shape(length)[0]
    place = tf.range(_largest_of(windows.lengths)) - windows.context_at[:, tf.newaxis]
    inside = (place >= 0) & (place < length)
    # In float64, because rounding decides which scores are tied.
    score = tf.cast(tf.minimum(place, length - 1 - place), tf.float64)
    score += 0.01 * tf.cast(length, tf.float64)
    # Questions may share a context, so the tokens are numbered for each question separately, one
    # question after the other. All other positions get the number after the last token.
    sizes = tf.gather(windows.token_starts.row_lengths(), windows.context_of)
    starts = tf.gather(windows.token_starts.row_starts(), windows.context_of)
    shift = tf.cast(tf.cumsum(sizes, exclusive=True) - starts, tf.int32)
    first = windows.first_token + tf.gather(shift, windows.question)
    total = tf.cast(tf.reduce_sum(sizes), tf.int32)
    number = tf.where(inside, first[:, tf.newaxis] + place, total)
    best = tf.math.unsorted_segment_max(score, number, total + 1)
    window = tf.range(count)[:, tf.newaxis]
    winner = tf.where(score == tf.gather(best, number), window, count)
    owner = tf.math.unsorted_segment_min(winner, number, total + 1)
    return inside & (tf.gather(owner, number) == window)


def _largest_of(lengths: tf.Tensor) -> tf.Tensor:
    """Returns the largest length, or 0 if there are none."""
    return tf.maximum(tf.reduce_max(lengths), 0)
