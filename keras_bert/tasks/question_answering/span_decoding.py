"""Finds the best answer spans of each question from the logits of its windows.

    start, end logits [T] -> best spans of each window -> spans of each question, sorted
    -> spans with different texts, [B, K]

A span has at most `max_answer_length` tokens, all of them context tokens of one window. They are
complete words: white space, punctuation and CJK characters separate words. The window must be the
one that `max_context` marks for the first token. The score of a span is start logit +
end logit, in float64. The score of "no answer" is that of the span ([CLS], [CLS]), in the window
where it is lowest.

B questions, C distinct contexts, n windows, S tokens of the longest window, T tokens of all
windows, D tokens of the contexts, K spans kept, M candidates of all questions.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from keras_bert.tasks.question_answering.settings import AnswerSettings
from keras_bert.tasks.question_answering.span_windows import SpanWindows, max_context
from keras_bert.text.offsets import bytes_of

# The base of `_fingerprints`: an odd 64-bit number without a regular pattern.
_BASE = 0x2545F4914F6CDD1D


class BestSpans(NamedTuple):
    """The candidates of each question, best first, and the logits of "no answer".

    `counts`, int32 [B], is the number of candidates of each question. `first_tokens` and
    `last_tokens` are indices into the D tokens, int32 [B, K], padded with -1. All logits are
    float64: those of the candidates are [B, K], padded with 0, and those of "no answer" are [B].
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
    """Finds up to K = `n_best_size` spans with different texts for each question.

    `logits` has "start_logits" and "end_logits", [T] each.
    """
    rows = tf.size(windows.context_of)
    start_logits, end_logits = (logits[f"{end}_logits"] for end in ("start", "end"))
    window, first, last = _window_spans(windows, start_logits, end_logits, settings)
    splits = tf.cast(windows.input_ids.row_splits, tf.int32)
    start_logit, end_logit = (
        tf.cast(tf.gather(values, tf.gather(splits, window) + place), tf.float64)
        for values, place in ((start_logits, first), (end_logits, last))
    )
    # Sort by question, then by descending score. Both sorts are stable, so equal scores keep the
    # order of windows and positions.
    order = tf.argsort(start_logit + end_logit, direction="DESCENDING", stable=True)
    question = tf.gather(windows.question, window)
    order = tf.gather(order, tf.argsort(tf.gather(question, order), stable=True))
    shift = tf.gather(windows.first_token - windows.context_at, window)
    question, first, last, start_logit, end_logit = (
        tf.gather(values, order)
        for values in (question, shift + first, shift + last, start_logit, end_logit)
    )
    # Keep the first span of each text, then the first K of these. The index M means no span.
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
        *_null_logits(windows, start_logits, end_logits),
    )


def _window_spans(
    windows: SpanWindows,
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    settings: AnswerSettings,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the best spans of each window.

    Returns:
        For each span: the index of its window, and the positions in the window of its first and
        last token, int32 [M] each.
    """
    n_best_size, max_answer_length = settings.n_best_size, settings.max_answer_length
    lowest = tf.constant(float("-inf"), tf.float64)
    start, end = (
        windows.input_ids.with_values(tf.cast(logits, tf.float64)).to_tensor(lowest)
        for logits in (start_logits, end_logits)
    )
    count, width = tf.unstack(tf.shape(end))
    place = tf.range(width)
    token = (windows.first_token - windows.context_at)[:, tf.newaxis] + place
    # The first token of a context starts a word, so the last token of any context ends one.
    starts_word = tf.concat([windows.starts_word, [True]], axis=0)
    starts, ends = (
        tf.gather(starts_word, tf.clip_by_value(each, 0, tf.size(windows.starts_word)))
        for each in (token, token + 1)
    )
    start = tf.where(max_context(windows) & starts, start, lowest)
    is_context = (place >= windows.context_at[:, tf.newaxis]) & (
        place < windows.lengths[:, tf.newaxis] - 1
    )
    end = tf.where(is_context & ends, end, lowest)
    end = tf.pad(end, [[0, 0], [0, max_answer_length - 1]], constant_values=lowest)

    # The K best spans of a window start at no more than K positions: those where the best span that
    # starts there has the highest scores.
    best = start + _largest_ahead(end, max_answer_length)
    first = tf.sort(tf.math.top_k(best, tf.minimum(n_best_size, width)).indices)  # [n, K]
    last = first[..., tf.newaxis] + tf.range(max_answer_length)  # [n, K, max_answer_length]
    scores = tf.gather(start, first, batch_dims=1)[..., tf.newaxis]
    scores += tf.gather(end, last, batch_dims=1)
    scores = tf.reshape(scores, [count, tf.shape(first)[1] * max_answer_length])
    # Keep 3 K spans, since spans with the same text count only once.
    kept = tf.minimum(3 * n_best_size, tf.shape(scores)[1])
    spans = tf.sort(tf.math.top_k(scores, kept).indices)
    real = tf.where(tf.gather(scores, spans, batch_dims=1) > lowest)  # [M, 2]
    window, span = tf.cast(real[:, 0], tf.int32), tf.gather_nd(spans, real)
    starts_at = tf.stack([window, span // max_answer_length], axis=1)
    first = tf.gather_nd(first, starts_at)
    return window, first, first + span % max_answer_length


def _largest_ahead(values: tf.Tensor, count: int) -> tf.Tensor:
    """Computes the maximum over each `count` consecutive values: [n, S + count - 1] -> [n, S].

    A pass combines maxima over two shorter ranges, so log2(count) passes are enough.
    """
    covered = 1
    while covered < count:
        step = min(covered, count - covered)
        values = tf.maximum(values[:, :-step], values[:, step:])
        covered += step
    return values


def _null_logits(
    windows: SpanWindows, start_logits: tf.Tensor, end_logits: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the start and end logit of [CLS] for each question, float64 [B] each.

    They are from the window of the question in which their sum is lowest.
    """
    places = windows.input_ids.row_starts()
    start, end = (
        tf.cast(tf.gather(logits, places), tf.float64) for logits in (start_logits, end_logits)
    )
    rows, count = tf.size(windows.context_of), tf.size(start)
    lowest = tf.math.unsorted_segment_min(start + end, windows.question, rows)
    is_lowest = start + end == tf.gather(lowest, windows.question)
    window = tf.where(is_lowest, tf.range(count), count)
    window = tf.math.unsorted_segment_min(window, windows.question, rows)
    return tf.gather(start, window), tf.gather(end, window)


def _fingerprints(
    windows: SpanWindows, question: tf.Tensor, first: tf.Tensor, last: tf.Tensor
) -> tf.Tensor:
    """Returns a number for each span that is equal for equal texts of a question, int64 [M].

    `question`, `first` and `last` are the question, first token and last token of each span, int32
    [M]; tokens are indices into the D tokens. The number is a polynomial of the question, length
    and bytes in `_BASE`, modulo 2^64: different texts get the same number with a probability of
    about 2^-60. Comparing the texts would need a copy of the context per span, such as a thousand
    copies of 1 MB.
    """
    text_bytes, text_starts = bytes_of(windows.context)
    size = tf.size(text_bytes)
    powers = tf.math.cumprod(tf.fill([size + 1], tf.constant(_BASE, tf.int64)), exclusive=True)
    sums = tf.pad(tf.cumsum(tf.cast(text_bytes, tf.int64) * powers[:-1]), [[1, 0]])
    offset = tf.gather(text_starts, tf.gather(windows.context_of, question))
    offset = tf.cast(offset, tf.int32)
    start = offset + tf.gather(windows.token_starts.values, first)
    end = offset + tf.gather(windows.token_ends.values, last)
    # Scale the sums as if all spans started at the same byte, so that equal texts are equal.
    number = (tf.gather(sums, end) - tf.gather(sums, start)) * tf.gather(powers, size - start)
    for part in (end - start, question):
        number = number * _BASE + tf.cast(part, tf.int64)
    return number


def _take(values: tf.Tensor, indices: tf.Tensor, default: int) -> tf.Tensor:
    """Gathers from values [M]; the index M gives `default`."""
    return tf.gather(tf.pad(values, [[0, 1]], constant_values=default), indices)
