"""Converts questions and contexts to windows, and logits to answers, in TensorFlow graphs.

    question, context: strings [B] -> windows, ragged int32 [n, (S)]      preprocess
    start, end logits [T] -> best spans -> answers [B]                    decode

Offsets count characters, as in Python's `str`. An invalid UTF-8 byte counts as one character, as in
`context.decode("utf-8", "surrogateescape")`.

B questions, n windows, S tokens of the longest window, T tokens of all windows, K candidates.
"""

from collections.abc import Mapping

import tensorflow as tf

from keras_bert.serving.inputs import same_shape
from keras_bert.tasks.question_answering.settings import AnswerSettings
from keras_bert.tasks.question_answering.span_decoding import BestSpans, find_best_spans
from keras_bert.tasks.question_answering.span_windows import SpanWindows, make_windows
from keras_bert.text.offsets import byte_to_char_offsets, valid_utf8
from keras_bert.text.tokenizer import BertTokenizer


class SpanProcessor:
    """Converts questions and contexts to windows, and span logits to answers."""

    per_token = True

    def __init__(self, tokenizer: BertTokenizer, settings: AnswerSettings):
        self.tokenizer = tokenizer
        self.settings = settings

    def preprocess(self, question: tf.Tensor, context: tf.Tensor) -> SpanWindows:
        """Splits each question, strings [B], with its context, strings [B], into windows."""
        question, context = same_shape(question=question, context=context)
        return make_windows(question, context, self.tokenizer, self.settings)

    def decode(self, outputs: Mapping[str, tf.Tensor], inputs: SpanWindows) -> dict[str, tf.Tensor]:
        """Decodes "start_logits" and "end_logits", [T] each, into answers.

        Returns:
            The outputs of `QuestionAnswerer.predict` for B questions, as tensors; scores are
            float64. If no word of the context fits in `max_answer_length` tokens, "no answer" is
            the only candidate, and "score" is equal to "null_score".
        """
        found = find_best_spans(inputs, outputs, self.settings)
        null_score = found.null_start_logits + found.null_end_logits
        score = found.start_logits[:, 0] + found.end_logits[:, 0]
        score = tf.where(found.counts > 0, score, null_score)
        answered = found.counts > 0
        if self.settings.threshold is not None:
            answered &= null_score - score <= self.settings.threshold

        texts, starts, ends = _texts(found, inputs)
        return {
            "answer": tf.where(answered, texts[:, 0], ""),
            "start": tf.where(answered, starts[:, 0], -1),
            "end": tf.where(answered, ends[:, 0], -1),
            "score": score,
            "null_score": null_score,
            "truncated": inputs.truncated,
        } | self._n_best(found, {"answers": texts, "starts": starts, "ends": ends})

    def _n_best(self, found: BestSpans, columns: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs whose names start with "nbest_", [B, K], or [B, K + 1] in v2.0.

        `columns` are values of the candidates, [B, K + 1] each; the last column is "no answer".
        """
        settings = self.settings
        with_null = tf.ones_like(found.counts, tf.bool)
        if not settings.version_2_with_negative:
            with_null = found.counts == 0
        real = tf.sequence_mask(found.counts, settings.n_best_size)
        real = tf.concat([real, with_null[:, tf.newaxis]], axis=1)
        start_logits, end_logits = (
            tf.where(real, tf.concat([logits, null[:, tf.newaxis]], axis=1), 0)
            for logits, null in (
                (found.start_logits, found.null_start_logits),
                (found.end_logits, found.null_end_logits),
            )
        )
        scores = tf.where(real, start_logits + end_logits, float("-inf"))
        # A stable sort places "no answer" after candidates with an equal score.
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        columns = {
            **columns,
            "probabilities": tf.nn.softmax(scores),
            "start_logits": start_logits,
            "end_logits": end_logits,
        }
        shown = settings.n_best_size + int(settings.version_2_with_negative)
        return {
            f"nbest_{name}": tf.gather(values, order, batch_dims=1)[:, :shown]
            for name, values in columns.items()
        }


def _texts(found: BestSpans, windows: SpanWindows) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the texts, start and end characters of the candidates, [B, K + 1] each.

    The last column is the candidate "no answer", with the text "" and the characters -1. If a
    question has fewer than K other candidates, the columns after them have the same values.
    """
    first, last = (
        tf.pad(tokens, [[0, 0], [0, 1]], constant_values=-1)
        for tokens in (found.first_tokens, found.last_tokens)
    )
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
    return texts, starts, ends
