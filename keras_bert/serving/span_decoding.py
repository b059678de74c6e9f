"""Logits of windows -> the best spans of each question, best first, inside the graph.

    start, end logits [T] -> per window the best spans -> all of a question, sorted
    -> those of different texts, [B, K]

tasks/squad/decoding.py in TensorFlow ops; a test holds the two equal. A span starts and ends on
pieces of the context, starts where its window is the one of max context, and has at most
`max_answer_length` pieces; its score is start + end logit, in float64. That no answer is there
scores as the span ([CLS], [CLS]) of the window that likes it least.

B rows, n windows, S pieces of the longest, T pieces in all, K spans kept, C candidates of all rows.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_bert.serving.windows import Windows, max_context
from keras_bert.text.tokenizer import bytes_of

# An odd 64-bit number without a pattern, the base of `_fingerprints`.
_BASE = 0x2545F4914F6CDD1D


class Decoded(NamedTuple):
    """The candidates of each row, best first, and the one of no answer.

    Attributes:
        counts: int32 [B], how many candidates there are, at most K.
        starts: int32 [B, K], the byte of the context that each starts at; -1 after the last.
        ends: int32 [B, K], the byte after its last; -1 after the last.
        start_logits: float64 [B, K]; 0 after the last.
        end_logits: float64 [B, K]; 0 after the last.
        null_start_logits: float64 [B].
        null_end_logits: float64 [B].
    """

    counts: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    start_logits: tf.Tensor
    end_logits: tf.Tensor
    null_start_logits: tf.Tensor
    null_end_logits: tf.Tensor


def decode(
    context: tf.Tensor,
    windows: Windows,
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    n_best_size: int = 20,
    max_answer_length: int = 30,
) -> Decoded:
    """Finds the best answers to questions.

    Args:
        context: strings [B].
        windows: of questions about those contexts.
        start_logits: [T], a value for each piece of the windows.
        end_logits: [T].
        n_best_size: K, candidates a row, of different texts.
        max_answer_length: pieces an answer may have.

    Returns:
        The candidates of each row.
    """
    rows = tf.size(context)
    allowed = max_context(windows)
    window, first, last = _window_spans(
        windows, allowed, start_logits, end_logits, n_best_size, max_answer_length
    )
    splits = tf.cast(windows.input_ids.row_splits, tf.int32)
    start_logit, end_logit = (
        tf.cast(tf.gather(logits, tf.gather(splits, window) + place), tf.float64)
        for logits, place in ((start_logits, first), (end_logits, last))
    )
    # By row, the highest score first; equals stay as their windows and places are: two stable
    # sorts.
    order = tf.argsort(start_logit + end_logit, direction="DESCENDING", stable=True)
    of_window = tf.gather(windows.question, window)
    order = tf.gather(order, tf.argsort(tf.gather(of_window, order), stable=True))
    to_piece = tf.gather(windows.first_piece - windows.context_at, window)
    row, starts, ends, start_logit, end_logit = (
        tf.gather(values, order)
        for values in (
            of_window,
            tf.gather(windows.piece_starts, to_piece + first),
            tf.gather(windows.piece_ends, to_piece + last),
            start_logit,
            end_logit,
        )
    )
    # The first of each text, then the first K of those; C stands for none.
    texts, text = tf.unique(_fingerprints(context, row, starts, ends))
    found = tf.math.unsorted_segment_min(tf.range(tf.size(text)), text, tf.size(texts))
    counts = tf.math.bincount(tf.gather(row, found), minlength=rows, maxlength=rows)
    best = tf.RaggedTensor.from_row_lengths(found, counts, validate=False).to_tensor(
        tf.size(text), shape=[None, n_best_size]
    )
    return Decoded(
        tf.minimum(counts, n_best_size),
        *(_take(values, best, -1) for values in (starts, ends)),
        *(_take(values, best, 0) for values in (start_logit, end_logit)),
        *_nulls(windows, start_logits, end_logits, rows),
    )


def _window_spans(
    windows: Windows,
    allowed: tf.Tensor,
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    n_best_size: int,
    max_answer_length: int,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the best spans of each window: window, first and last place in it, each int32 [C]."""
    least = tf.constant(float("-inf"), tf.float64)
    start, end = (
        windows.input_ids.with_values(tf.cast(logits, tf.float64)).to_tensor(least)
        for logits in (start_logits, end_logits)
    )
    start = tf.where(allowed, start, least)
    count, width = tf.unstack(tf.shape(end))
    place = tf.range(width)
    is_context = (place >= windows.context_at[:, tf.newaxis]) & (
        place < windows.lengths[:, tf.newaxis] - 1
    )
    end = tf.where(is_context, end, least)
    end = tf.pad(end, [[0, 0], [0, max_answer_length - 1]], constant_values=least)

    # The K best spans start at no more than K places: those whose own best span is best.
    best = start + _largest_ahead(end, max_answer_length)
    first = tf.sort(tf.math.top_k(best, tf.minimum(n_best_size, width)).indices)  # [n, K]
    last = first[..., tf.newaxis] + tf.range(max_answer_length)  # [n, K, max_answer_length]
    scores = tf.gather(start, first, batch_dims=1)[..., tf.newaxis]
    scores += tf.gather(end, last, batch_dims=1)
    scores = tf.reshape(scores, [count, tf.shape(first)[1] * max_answer_length])
    # More than are asked for, since spans of one text count once.
    kept = tf.minimum(3 * n_best_size, tf.shape(scores)[1])
    spans = tf.sort(tf.math.top_k(scores, kept).indices)
    real = tf.where(tf.gather(scores, spans, batch_dims=1) > least)  # [C, 2]
    window, span = tf.cast(real[:, 0], tf.int32), tf.gather_nd(spans, real)
    starts_at = tf.stack([window, span // max_answer_length], axis=1)
    first = tf.gather_nd(first, starts_at)
    return window, first, first + span % max_answer_length


def _largest_ahead(values: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the largest of each value and the count - 1 after it: [n, S + count - 1] -> [n, S].

    The largest of `covered` values and that of the `step` after them overlap to the largest of more
    until all are covered, in a few ops.
    """
    covered = 1
    while covered < count:
        step = min(covered, count - covered)
        values = tf.maximum(values[:, :-step], values[:, step:])
        covered += step
    return values


def _nulls(
    windows: Windows, start_logits: tf.Tensor, end_logits: tf.Tensor, rows: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the logits of [CLS] of each row, from its window that likes it least."""
    places = windows.input_ids.row_starts()
    start, end = (
        tf.cast(tf.gather(logits, places), tf.float64) for logits in (start_logits, end_logits)
    )
    least = tf.math.unsorted_segment_min(start + end, windows.question, rows)
    count = tf.size(start)
    is_least = start + end == tf.gather(least, windows.question)
    window = tf.where(is_least, tf.range(count), count)
    window = tf.math.unsorted_segment_min(window, windows.question, rows)
    return tf.gather(start, window), tf.gather(end, window)


def _fingerprints(text: tf.Tensor, row: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Makes a number of each slice, equal for equal slices of one text, and else hardly ever.

    The slices themselves would take a copy of the whole text each, a thousand times 1 MB.

    Args:
        text: strings [B].
        row: int32 [C], the text that each slice is of.
        starts: int32 [C], bytes.
        ends: int32 [C], bytes.

    Returns:
        int64 [C]: the polynomial of row, length and bytes in `_BASE`, modulo 2^64.
    """
    text_bytes, text_starts = bytes_of(text)
    size = tf.size(text_bytes)
    powers = tf.math.cumprod(tf.fill([size + 1], tf.constant(_BASE, tf.int64)), exclusive=True)
    sums = tf.pad(tf.cumsum(tf.cast(text_bytes, tf.int64) * powers[:-1]), [[1, 0]])
    offset = tf.cast(tf.gather(text_starts, row), tf.int32)
    first, last = offset + starts, offset + ends
    # All as if they ended where the texts do.
    number = (tf.gather(sums, last) - tf.gather(sums, first)) * tf.gather(powers, size - first)
    for part in (ends - starts, row):
        number = number * _BASE + tf.cast(part, tf.int64)
    return number


def _take(values: tf.Tensor, places: tf.Tensor, nothing: int) -> tf.Tensor:
    """Gathers values [C]; the place C gives `nothing`."""
    return tf.gather(tf.pad(values, [[0, 1]], constant_values=nothing), places)
