"""Splits questions and contexts into overlapping windows of tokens, and labels the answers in them.

    question, context: strings [B] -> tokens with byte offsets -> windows, ragged int32 [n, (S)]

    [CLS] question [SEP] part of the context [SEP]        one window
      0      0       0            1            1          its segment ids

Each distinct context is tokenized once.

B questions, C distinct contexts, D tokens of these contexts, n windows, S tokens of the longest
window, T tokens of all windows.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from keras_bert.export.inputs import same_shape
from keras_bert.tasks.examples import Examples
from keras_bert.tasks.prepared import Prepared, Processor, prepare
from keras_bert.tasks.question_answering.data import AnswerSettings, Question
from keras_bert.tasks.question_answering.decoding import (
    SpanWindows,
    decode_answers,
)
from keras_bert.text.padding import combine_segments
from keras_bert.text.windows import split_tokens


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
        return decode_answers(inputs, outputs, self.settings)


# --- examples ---


def prepare_questions(processor: SpanProcessor, questions: Sequence[Question]) -> Prepared:
    """Splits each question with its context into one or more windows."""
    columns = [[q.text for q in questions], [q.context for q in questions]]
    return prepare(processor.preprocess, columns, tokenizer=processor.tokenizer)


def training_examples(prepared: Prepared, questions: Sequence[Question]) -> Examples:
    """Labels the windows of `prepare_questions` with the first answer of each question.

    The labels are `start_positions` and `end_positions`, int32 [n].
    """
    parts = [np.zeros([0, 2], np.int32)]
    first = 0
    for windows in prepared.chunks:
        count = len(windows.context_of)
        parts.append(_span_positions(windows, questions[first : first + count]))
        first += count
    start, end = np.concatenate(parts).T.copy()
    return dataclasses.replace(
        prepared.examples, labels={"start_positions": start, "end_positions": end}
    )


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
