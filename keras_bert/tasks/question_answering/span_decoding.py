"""Finds the best spans of each question from the logits of its windows.

    start, end logits [T] -> the best spans of each window -> those of a question, sorted
    -> those of different texts, [B, K]

A span starts and ends on tokens of the context, starts in the window that `max_context` marks for
its first token, and has at most `max_answer_length` tokens. Its score is start logit + end logit,
in float64. The score of no answer is that of the span ([CLS], [CLS]) in the window where it is
lowest.

B questions, C distinct contexts, n windows, S tokens of the longest, T tokens of all windows,
D tokens of the contexts, K spans kept, M candidates of all questions.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from keras_bert.tasks.question_answering.settings import AnswerSettings
from keras_bert.tasks.question_answering.span_windows import SpanWindows, max_context
from keras_bert.text.tokenizer import bytes_of

# An odd 64-bit number without a pattern, the base of `_fingerprints`.
_BASE = 0x2545F4914F6CDD1D


class BestSpans(NamedTuple):
    """The candidates of each question, best first, and the score of no answer.

    Attributes:
        counts: int32 [B], the number of candidates, at most K.
        first_tokens: int32 [B, K], indices among the D tokens; -1 after the last candidate.
        last_tokens: int32 [B, K]; -1 after the last candidate.
        start_logits: float64 [B, K]; 0 after the last candidate.
        end_logits: float64 [B, K]; 0 after the last candidate.
        null_start_logits: float64 [B].
        null_end_logits: float64 [B].
    """

    counts: tf.Tensor
    first_tokens: tf.Tensor
    last_tokens: tf.Tensor
    start_logits: tf.Tensor
    end_logits: tf.Tensor
    null_start_logits: tf.Tensor
    null_end_logits: tf.Tensor


def find_best_spans(
    windows: SpanWindows, logits: Mapping[str, tf.Tensor], settings: AnswerSettings
) -> BestSpans:
    """Finds the best spans of each question, each text once.

    Args:
        windows: of the questions.
        logits: {"start_logits", "end_logits": [T]}, a value for each token of the windows.
        settings: K (`n_best_size`) and the length of an answer.

    Returns:
        The candidates of each question.
    """
    rows = tf.size(windows.context_of)
    start_logits, end_logits = (logits[f"{end}_logits"] for end in ("start", "end"))
    window, first, last = _window_spans(windows, start_logits, end_logits, settings)
    splits = tf.cast(windows.input_ids.row_splits, tf.int32)
    start_logit, end_logit = (
        tf.cast(tf.gather(values, tf.gather(splits, window) + place), tf.float64)
        for values, place in ((start_logits, first), (end_logits, last))
    )
    # By question, the highest score first; equal scores keep the order of windows and positions:
    # two stable sorts.
    order = tf.argsort(start_logit + end_logit, direction="DESCENDING", stable=True)
    question = tf.gather(windows.question, window)
    order = tf.gather(order, tf.argsort(tf.gather(question, order), stable=True))
    shift = tf.gather(windows.first_token - windows.context_at, window)
    question, first, last, start_logit, end_logit = (
        tf.gather(values, order)
        for values in (question, shift + first, shift + last, start_logit, end_logit)
    )
    # The first of each text, then the first K of those; M stands for none.
    texts, text = tf.unique(_fingerprints(windows, question, first, last))
    found = tf.math.unsorted_segment_min(tf.range(tf.size(text)), text, tf.size(texts))
    counts = tf.math.bincount(tf.gather(question, found), minlength=rows, maxlength=rows)
    best = tf.RaggedTensor.from_row_lengths(found, counts, validate=False).to_tensor(
        tf.size(text), shape=[None, settings.n_best_size]
    )
    return BestSpans(
        tf.minimum(counts, settings.n_best_size),
        *(_take(values, best, -1) for values in (first, last)),
        *(_take(values, best, 0) for values in (start_logit, end_logit)),
        *_nulls(windows, start_logits, end_logits),
    )


def _window_spans(
    windows: SpanWindows,
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    settings: AnswerSettings,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the best spans of each window.

    Returns:
        The window and the first and last position in it, each int32 [M].
    """
    n_best_size, max_answer_length = settings.n_best_size, settings.max_answer_length
    least = tf.constant(float("-inf"), tf.float64)
    start, end = (
        windows.input_ids.with_values(tf.cast(logits, tf.float64)).to_tensor(least)
        for logits in (start_logits, end_logits)
    )
    start = tf.where(max_context(windows), start, least)
    count, width = tf.unstack(tf.shape(end))
    place = tf.range(width)
    is_context = (place >= windows.context_at[:, tf.newaxis]) & (
        place < windows.lengths[:, tf.newaxis] - 1
    )
    end = tf.where(is_context, end, least)
    end = tf.pad(end, [[0, 0], [0, max_answer_length - 1]], constant_values=least)

    # The K best spans start at no more than K positions: those whose own best span is best.
    best = start + _largest_ahead(end, max_answer_length)
    first = tf.sort(tf.math.top_k(best, tf.minimum(n_best_size, width)).indices)  # [n, K]
    last = first[..., tf.newaxis] + tf.range(max_answer_length)  # [n, K, max_answer_length]
    scores = tf.gather(start, first, batch_dims=1)[..., tf.newaxis]
    scores += tf.gather(end, last, batch_dims=1)
    scores = tf.reshape(scores, [count, tf.shape(first)[1] * max_answer_length])
    # More than are returned, since spans of one text count once.
    kept = tf.minimum(3 * n_best_size, tf.shape(scores)[1])
    spans = tf.sort(tf.math.top_k(scores, kept).indices)
    real = tf.where(tf.gather(scores, spans, batch_dims=1) > least)  # [M, 2]
    window, span = tf.cast(real[:, 0], tf.int32), tf.gather_nd(spans, real)
    starts_at = tf.stack([window, span // max_answer_length], axis=1)
    first = tf.gather_nd(first, starts_at)
    return window, first, first + span % max_answer_length


def _largest_ahead(values: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the largest of each value and the count - 1 after it: [n, S + count - 1] -> [n, S].

    The maximum over `covered` values and the maximum over the `step` values after them combine to
    the maximum over more, until all are covered: log2(count) ops.
    """
    covered = 1
    while covered < count:
        step = min(covered, count - covered)
        values = tf.maximum(values[:, :-step], values[:, step:])
        covered += step
    return values


def _nulls(
    windows: SpanWindows, start_logits: tf.Tensor, end_logits: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the logits of [CLS] of each question, from the window with the lowest sum."""
    places = windows.input_ids.row_starts()
    start, end = (
        tf.cast(tf.gather(logits, places), tf.float64) for logits in (start_logits, end_logits)
    )
    rows, count = tf.size(windows.context_of), tf.size(start)
    least = tf.math.unsorted_segment_min(start + end, windows.question, rows)
    is_least = start + end == tf.gather(least, windows.question)
    window = tf.where(is_least, tf.range(count), count)
    window = tf.math.unsorted_segment_min(window, windows.question, rows)
    return tf.gather(start, window), tf.gather(end, window)


def _fingerprints(
    windows: SpanWindows, question: tf.Tensor, first: tf.Tensor, last: tf.Tensor
) -> tf.Tensor:
    """Computes a number for each span, equal for spans of one question with equal text.

    Two different texts of one question have equal numbers with a probability of about 2^-60. The
    texts themselves would take a copy of the whole context each, a thousand times 1 MB.

    Args:
        windows: of the questions.
        question: int32 [M], the question of each span.
        first: int32 [M], the first of its tokens among the D.
        last: int32 [M], the last.

    Returns:
        int64 [M]: the polynomial of question, length and bytes in `_BASE`, modulo 2^64.
    """
    text_bytes, text_starts = bytes_of(windows.context)
    size = tf.size(text_bytes)
    powers = tf.math.cumprod(tf.fill([size + 1], tf.constant(_BASE, tf.int64)), exclusive=True)
    sums = tf.pad(tf.cumsum(tf.cast(text_bytes, tf.int64) * powers[:-1]), [[1, 0]])
    offset = tf.gather(text_starts, tf.gather(windows.context_of, question))
    offset = tf.cast(offset, tf.int32)
    start = offset + tf.gather(windows.token_starts.values, first)
    end = offset + tf.gather(windows.token_ends.values, last)
    # Aligned as if all of them ended where the texts do.
    number = (tf.gather(sums, end) - tf.gather(sums, start)) * tf.gather(powers, size - start)
    for part in (end - start, question):
        number = number * _BASE + tf.cast(part, tf.int64)
    return number


def _take(values: tf.Tensor, indices: tf.Tensor, nothing: int) -> tf.Tensor:
    """Gathers values [M]; the index M gives `nothing`."""
    return tf.gather(tf.pad(values, [[0, 1]], constant_values=nothing), indices)
