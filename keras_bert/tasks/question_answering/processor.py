"""Questions and contexts to windows of tokens, the labels of answers, and logits to answers.

    question, context: strings [B] -> tokens with byte offsets -> windows, ragged int32 [n, (S)]

    [CLS] question [SEP] part of the context [SEP]        one window
      0      0       0            1            1          its segment ids

    start, end logits [T] -> best spans of each window -> spans of each question, sorted
    -> spans with different texts, [B, K] -> answers [B] -> prediction files

Each distinct context is tokenized once. A span has at most `max_answer_length` tokens, all of them
context tokens of one window. They are complete words: white space, punctuation and CJK characters
separate words. The window must be the one that `max_context` marks for the first token. The score
of a span is start logit + end logit, in float64. The score of "no answer" is that of the span
([CLS], [CLS]), in the window where it is lowest.

Offsets count characters, as in Python's `str`. An invalid UTF-8 byte counts as one character, as in
`context.decode("utf-8", "surrogateescape")`.

B questions, C distinct contexts, n windows, S tokens of the longest window, T tokens of all
windows, D tokens of the contexts, K spans kept, M candidates of all questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.export.inputs import same_shape
from keras_bert.tasks.prepared import Prepared, Processor
from keras_bert.tasks.question_answering.data import AnswerSettings, Question
from keras_bert.text.offsets import byte_to_char_offsets, bytes_of, valid_utf8
from keras_bert.text.padding import combine_segments
from keras_bert.text.windows import split_tokens

ENDS = ("start", "end")


class SpanWindows(NamedTuple):
    """The windows of some questions, grouped by question; `SpanProcessor.preprocess` creates them.

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


class SpanProcessor(Processor):
    """Converts questions and contexts to windows, and span logits to answers."""

    per_token = True
    settings: AnswerSettings

    def preprocess(self, question: tf.Tensor, context: tf.Tensor) -> SpanWindows:
        """Splits each question, strings [B], with its context, strings [B], into windows.

        Each question has at least one window, and each token of its context is in at least one.
        """
        tokenizer, settings = self.tokenizer, self.settings
        question, context = same_shape(question=question, context=context)
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
        row, start, length = split_tokens(sizes, room, step)
        first_token = tf.gather(starts, row) + start

        def tokens(first: tf.Tensor, size: tf.Tensor) -> tf.RaggedTensor:
            return tf.gather(ids.values, tf.ragged.range(first, first + size))

        query_lengths = tf.gather(queries, row)
        segments = combine_segments(
            tokens(tf.gather(query_starts, row), query_lengths),
            tokens(first_token, length),
            max_seq_length=settings.max_seq_length,
            cls_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
        )
        return SpanWindows(
            segments.input_ids,
            segments.segment_ids,
            row,
            query_lengths + 2,
            first_token,
            context,
            context_of,
            token_starts[:count],
            token_ends[:count],
            ~tf.gather(tokenizer.is_continuation, ids[:count].values),
            truncated,
        )

    def decode(self, outputs: Mapping[str, tf.Tensor], inputs: SpanWindows) -> dict[str, tf.Tensor]:
        """Decodes "start_logits" and "end_logits", [T] each, into answers.

        Returns:
            The outputs of `QuestionAnswerer.predict` for B questions, as tensors; scores are
            float64. If no word of the context fits in `max_answer_length` tokens, "no answer" is
            the only candidate, and "score" is equal to "null_score".
        """
        settings = self.settings
        counts, *tokens, start_logits, end_logits = _find_best_spans(inputs, outputs, settings)
        scores = start_logits + end_logits
        has_span, null_score = counts > 0, scores[:, -1]
        score = tf.where(has_span, scores[:, 0], null_score)
        answered = has_span
        if settings.threshold is not None:
            answered &= null_score - score <= settings.threshold

        with_null = tf.ones_like(has_span) if settings.version_2_with_negative else ~has_span
        real = tf.sequence_mask(counts, settings.n_best_size)
        real = tf.concat([real, with_null[:, tf.newaxis]], axis=1)
        scores = tf.where(real, scores, float("-inf"))
        columns = {
            **_texts(*tokens, inputs),
            "probabilities": tf.nn.softmax(scores),
            "start_logits": tf.where(real, start_logits, 0),
            "end_logits": tf.where(real, end_logits, 0),
        }
        # A stable sort places "no answer" after candidates with an equal score.
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        shown = settings.n_best_size + int(settings.version_2_with_negative)
        n_best = {
            f"nbest_{name}": tf.gather(values, order, batch_dims=1)[:, :shown]
            for name, values in columns.items()
        }
        return {
            "answer": tf.where(answered, columns["answers"][:, 0], ""),
            "start": tf.where(answered, columns["starts"][:, 0], -1),
            "end": tf.where(answered, columns["ends"][:, 0], -1),
            "score": score,
            "null_score": null_score,
            "truncated": inputs.truncated,
        } | n_best


# --- examples ---


def labeled(prepared: Prepared, questions: Sequence[Question]) -> Prepared:
    """Adds the labels `start_positions` and `end_positions`, int32 [n], of each first answer."""
    parts = [np.zeros([0, 2], np.int32)]
    first = 0
    for windows in prepared.chunks:
        count = len(windows.context_of)
        parts.append(_span_positions(windows, questions[first : first + count]))
        first += count
    start, end = np.concatenate(parts).T.copy()
    labels = {"start_positions": start, "end_positions": end}
    return prepared._replace(examples=replace(prepared.examples, labels=labels))


def _span_positions(windows: SpanWindows, questions: Sequence[Question]) -> np.ndarray:
    """Returns the positions of the answer's first and last token in each window, int32 [n, 2].

    The answer's tokens are all tokens that contain at least one of its characters. Both positions
    are 0, the position of [CLS], in a window that lacks any of these tokens, and in every window of
    a question without answer. `windows` must have eager tensors.
    """
    context_of, splits = windows.context_of.numpy(), windows.token_starts.row_splits.numpy()
    starts, ends = windows.token_starts.values.numpy(), windows.token_ends.values.numpy()
    spans = np.full([len(questions), 2], -1, np.int64)
    for i, question in enumerate(questions):
        if not question.answers:
            continue
        first, last = splits[context_of[i]], splits[context_of[i] + 1]
        answer = question.answers[0]
        begin = _byte_offset(question.context, answer.start)
        end = _byte_offset(question.context, answer.start + len(answer.text))
        spans[i] = (
            first + np.searchsorted(ends[first:last], begin, side="right"),
            first + np.searchsorted(starts[first:last], end, side="left") - 1,
        )
    spans = spans[windows.question.numpy()]
    in_window = spans - windows.first_token.numpy()[:, np.newaxis]
    inside = (spans[:, 0] >= 0) & (in_window[:, 0] >= 0) & (in_window[:, 0] <= in_window[:, 1])
    inside &= in_window[:, 1] < windows.context_lengths.numpy()
    positions = in_window + windows.context_at.numpy()[:, np.newaxis]
    return np.where(inside[:, np.newaxis], positions, 0).astype(np.int32)


def _byte_offset(text: str, character: int) -> int:
    """Returns the UTF-8 byte offset of a character; a lone surrogate takes three bytes."""
    return len(text[:character].encode("utf-8", "surrogatepass"))


# --- the best spans ---

# The base of `_fingerprints`: an odd 64-bit number without a regular pattern.
_BASE = 0x2545F4914F6CDD1D


def _find_best_spans(
    windows: SpanWindows, logits: Mapping[str, tf.Tensor], settings: AnswerSettings
) -> tuple[tf.Tensor, ...]:
    """Finds up to K = `n_best_size` spans with different texts for each question.

    `logits` has "start_logits" and "end_logits", [T] each.

    Returns:
        The number of candidates of each question, int32 [B]; and for each candidate, best first,
        the indices of its first and last token among the D tokens, int32 [B, K + 1], and its
        logits, float64 [B, K + 1]. The tokens are padded with -1, and the logits with 0. The last
        column is "no answer", with the logits of [CLS].
    """
    rows = tf.size(windows.context_of)
    start_logits, end_logits = (tf.cast(logits[f"{end}_logits"], tf.float64) for end in ENDS)
    window, first, last = _window_spans(windows, start_logits, end_logits, settings)
    splits = tf.cast(windows.input_ids.row_splits, tf.int32)
    start_logit, end_logit = (
        tf.gather(values, tf.gather(splits, window) + position)
        for values, position in ((start_logits, first), (end_logits, last))
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
    unique = tf.math.unsorted_segment_min(tf.range(tf.size(text)), text, tf.size(texts))
    counts = tf.math.bincount(tf.gather(question, unique), minlength=rows, maxlength=rows)
    best = tf.RaggedTensor.from_row_lengths(unique, counts, validate=False).to_tensor(
        tf.size(text), shape=[None, settings.n_best_size]
    )
    # After that index, "no answer" of each question.
    null = tf.size(text) + 1 + tf.range(rows)
    best = tf.concat([best, null[:, tf.newaxis]], axis=1)
    nulls = (tf.fill([rows], -1),) * 2 + _null_logits(windows, start_logits, end_logits)
    columns = zip((first, last, start_logit, end_logit), (-1, -1, 0, 0), nulls, strict=True)
    return tf.minimum(counts, settings.n_best_size), *(
        tf.gather(tf.concat([values, [padding], of_null], axis=0), best)
        for values, padding, of_null in columns
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
        windows.input_ids.with_values(logits).to_tensor(lowest)
        for logits in (start_logits, end_logits)
    )
    count, width = tf.unstack(tf.shape(end))
    position = tf.range(width)
    token = (windows.first_token - windows.context_at)[:, tf.newaxis] + position
    # The first token of a context starts a word, so the last token of any context ends one.
    starts_word = tf.concat([windows.starts_word, [True]], axis=0)
    starts, ends = (
        tf.gather(starts_word, tf.clip_by_value(each, 0, tf.size(windows.starts_word)))
        for each in (token, token + 1)
    )
    start = tf.where(max_context(windows) & starts, start, lowest)
    is_context = (position >= windows.context_at[:, tf.newaxis]) & (
        position < windows.lengths[:, tf.newaxis] - 1
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
    num_spans = tf.minimum(3 * n_best_size, tf.shape(scores)[1])
    spans = tf.sort(tf.math.top_k(scores, num_spans).indices)
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
    cls_tokens = windows.input_ids.row_starts()
    start, end = (tf.gather(logits, cls_tokens) for logits in (start_logits, end_logits))
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

    The number is a polynomial of the question, length and bytes in `_BASE`, modulo 2^64: different
    texts get the same number with a probability of about 2^-60. Making the texts would take four
    times as long as everything else.
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


def max_context(windows: SpanWindows) -> tf.Tensor:
    """Marks each context token in the window where it has the most context, bool [n, S].

    A token's score in a window is the smaller of the numbers of context tokens to its left and
    right, plus 0.01 times the number of context tokens in the window. The window with the highest
    score wins, or the first of several, as in Google's run_squad. So every token of a question's
    context is marked once.
    """
    length = windows.context_lengths[:, tf.newaxis]
    count = tf.shape(length)[0]
    width = tf.maximum(tf.reduce_max(windows.lengths), 0)
    position = tf.range(width) - windows.context_at[:, tf.newaxis]
    inside = (position >= 0) & (position < length)
    # In float64, because rounding decides which scores are tied.
    score = tf.cast(tf.minimum(position, length - 1 - position), tf.float64)
    score += 0.01 * tf.cast(length, tf.float64)
    # Questions may share a context, so the tokens are numbered for each question separately, one
    # question after the other. All other positions get the number after the last token.
    sizes = tf.gather(windows.token_starts.row_lengths(), windows.context_of)
    starts = tf.gather(windows.token_starts.row_starts(), windows.context_of)
    shift = tf.cast(tf.cumsum(sizes, exclusive=True) - starts, tf.int32)
    first = windows.first_token + tf.gather(shift, windows.question)
    total = tf.cast(tf.reduce_sum(sizes), tf.int32)
    number = tf.where(inside, first[:, tf.newaxis] + position, total)
    best = tf.math.unsorted_segment_max(score, number, total + 1)
    window = tf.range(count)[:, tf.newaxis]
    winner = tf.where(score == tf.gather(best, number), window, count)
    owner = tf.math.unsorted_segment_min(winner, number, total + 1)
    return inside & (tf.gather(owner, number) == window)


# --- spans to answers ---


def _texts(first: tf.Tensor, last: tf.Tensor, windows: SpanWindows) -> dict[str, tf.Tensor]:
    """Returns the "answers", "starts" and "ends" of candidates, in characters, [B, K + 1] each.

    `first` and `last` are their first and last tokens. The token -1 has the text "" and the
    offsets -1.
    """
    # The padding gives tf.gather a value even if the only context is empty and has no tokens.
    offsets = [windows.token_starts, windows.token_ends]
    utf8 = valid_utf8(windows.context)
    offsets += [byte_to_char_offsets(utf8, each) for each in offsets]
    byte_starts, byte_ends, starts, ends = (
        tf.gather(tf.pad(each.values, [[1, 0]], constant_values=-1), tokens + 1)
        for each, tokens in zip(offsets, (first, last) * 2, strict=True)
    )
    context = tf.gather(windows.context, windows.context_of)[:, tf.newaxis]
    texts = tf.strings.substr(context, tf.maximum(byte_starts, 0), byte_ends - byte_starts)
    return {"answers": texts, "starts": starts, "ends": ends}


# --- prediction files ---


class Predictions(NamedTuple):
    """Some questions, and the outputs of `SpanProcessor.decode` for them, as arrays."""

    questions: Sequence[Question]
    outputs: Mapping[str, np.ndarray]

    @property
    def null_odds(self) -> dict[str, float]:
        """{question id: score of "no answer" - score of the best text}, as in null_odds.json."""
        odds = self.outputs["null_score"] - self.outputs["score"]
        return {q.id: value for q, value in zip(self.questions, odds.tolist(), strict=True)}

    @property
    def best_texts(self) -> dict[str, str]:
        """{question id: text of the best candidate other than "no answer", or "" without any}."""
        starts, ends = self.outputs["nbest_starts"], self.outputs["nbest_ends"]
        # If the best candidate is "no answer", the best text is the candidate after it.
        best = np.arange(len(starts)), (starts >= 0).argmax(axis=1)
        texts = texts_at([q.context for q in self.questions], starts[best], ends[best])
        return {q.id: text for q, text in zip(self.questions, texts, strict=True)}

    def answers(self, threshold: float | None) -> dict[str, str]:
        """Returns {question id: answer}, as in predictions.json.

        A question whose null odds are above the threshold gets the empty answer. In v1.1, the
        threshold is None.
        """
        texts = self.best_texts
        if threshold is None:
            return texts
        odds = self.null_odds
        return {name: "" if odds[name] > threshold else text for name, text in texts.items()}

    def n_best(self, with_null: bool) -> dict[str, list[dict[str, object]]]:
        """Returns {question id: candidates, best first}, as in nbest_predictions.json.

        A candidate is {"text", "probability", "start_logit", "end_logit"}; the probabilities of a
        question sum to 1. If `with_null` is set (v2.0), "no answer" is a candidate of every
        question.
        """
        starts, ends = self.outputs["nbest_starts"], self.outputs["nbest_ends"]
        num_spans = (starts >= 0).sum(axis=1)
        counts = num_spans + 1 if with_null else np.maximum(num_spans, 1)
        columns = {
            "text": texts_at([q.context for q in self.questions], starts, ends),
            "probability": self.outputs["nbest_probabilities"],
            "start_logit": self.outputs["nbest_start_logits"],
            "end_logit": self.outputs["nbest_end_logits"],
        }
        lists: dict[str, list[dict[str, object]]] = {}
        for row, (question, count) in enumerate(zip(self.questions, counts, strict=True)):
            values = (column[row, :count].tolist() for column in columns.values())
            candidates = zip(*values, strict=True)
            lists[question.id] = [dict(zip(columns, each, strict=True)) for each in candidates]
        return lists


def texts_at(contexts: Sequence[str], starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns slices of the contexts at character offsets; "" where a start is -1.

    `starts` and `ends` are integers [n], or [n, K] for K slices of each of n contexts. The result
    has the same shape.
    """
    texts = np.empty(starts.shape, object)
    for index in np.ndindex(starts.shape):
        start, end = int(starts[index]), int(ends[index])
        texts[index] = contexts[index[0]][start:end] if start >= 0 else ""
    return texts
