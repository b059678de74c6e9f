"""A served span labeler: questions and contexts in, answers out, as TensorFlow ops.

    question, context: strings [B]
      windows.py          pieces, and windows of them            ragged [n, (S)]
      network             start and end logits                   [T]
      span_decoding.py    the best spans as bytes of contexts    [B, K]
    -> answers: slices of the contexts, their characters and scores

The answers are those of `run_squad.py --do_predict`, for texts of any length and any bytes. Places
are characters as Python's `str` counts them; a byte that is not UTF-8 counts as a character, as in
`context.decode("utf-8", "surrogateescape")`. An answer is the very bytes of its context.

B rows, n windows, S pieces of the longest, T pieces in all windows, K candidates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.serving import token_ids
from keras_bert.serving.inputs import same_shape
from keras_bert.serving.network import Network
from keras_bert.serving.span_decoding import Decoded, decode
from keras_bert.serving.windows import make_windows
from keras_bert.text.tokenizer import BertTokenizer, byte_to_char_offsets, valid_utf8


@dataclass(frozen=True)
class AnswerSettings:
    """How questions become windows, and logits become answers; the names are run_squad's flags.

    Attributes:
        max_seq_length: pieces of a window.
        max_query_length: pieces of a question; the rest is not read.
        doc_stride: pieces from the start of one window to that of the next.
        n_best_size: candidates a question.
        max_answer_length: pieces of an answer.
        version_2: whether a question may have no answer.
        null_score_diff_threshold: null odds above it give the empty answer (version_2).

    Raises:
        InputError: a number that cannot be.
    """

    max_seq_length: int = 384
    max_query_length: int = 64
    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    version_2: bool = False
    null_score_diff_threshold: float = 0.0

    def __post_init__(self):
        for name in ("n_best_size", "max_answer_length", "max_query_length", "doc_stride"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name}={getattr(self, name)}: expected at least 1")
        if self.max_seq_length < self.max_query_length + 4:
            raise InputError(
                f"--max_seq_length={self.max_seq_length}: expected at least "
                f"{self.max_query_length + 4}, room for --max_query_length="
                f"{self.max_query_length}, [CLS], two [SEP] and a piece of context"
            )
        if not math.isfinite(self.null_score_diff_threshold):
            raise InputError(
                f"--null_score_diff_threshold={self.null_score_diff_threshold}: expected a finite "
                "number"
            )


class ServedQuestionAnswering(tf.Module):
    """A span labeler as signatures of a SavedModel.

    Args:
        network: of a BertSpanLabeler.
        tokenizer: of its vocabulary.
        settings: how questions become windows, and logits become answers.

    Raises:
        InputError: windows are longer than the model can read.
    """

    def __init__(self, network: Network, tokenizer: BertTokenizer, settings: AnswerSettings):
        if settings.max_seq_length > network.config.max_position_embeddings:
            raise InputError(
                f"--max_seq_length={settings.max_seq_length}: expected at most the model's "
                f"{network.config.max_position_embeddings} positions"
            )
        super().__init__(name="question_answering")
        self.network = network
        self.tokenizer = tokenizer
        self.settings = settings

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures: of texts, and of token ids."""
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in ("question", "context")]
        return {
            "serving_default": tf.function(self.of_texts, input_signature=texts),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def of_texts(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers questions.

        Args:
            question: strings [B].
            context: strings [B], what each is asked about.

        Returns:
            `answer`: strings [B]; "" where the context tells none.
            `start`, `end`: int32 [B], the answer's characters in its context; -1 where it is "".
            `score`: float32 [B], start + end logit of the best text, whether it is the answer or
                not; the lowest float where the context has no word.
            `null_score`: float32 [B], the same of no answer. Their difference is the null odds.
            `nbest_answers`, `nbest_starts`, `nbest_ends`, `nbest_probabilities`,
            `nbest_start_logits`, `nbest_end_logits`: [B, n_best_size], candidates of different
                texts, best first, after the last "", -1 and 0. In v2.0 they are one more: no
                answer, which is "" and -1 too, is a candidate, as it is where there is no other.
        """
        settings = self.settings
        question, context = same_shape(question=question, context=context)
        windows = make_windows(
            question,
            context,
            self.tokenizer,
            settings.max_seq_length,
            settings.max_query_length,
            settings.doc_stride,
        )
        logits = self.network(windows.input_ids, windows.segment_ids)
        found = decode(
            context,
            windows,
            logits["start_logits"],
            logits["end_logits"],
            settings.n_best_size,
            settings.max_answer_length,
        )
        null_score = found.null_start_logits + found.null_end_logits
        score = found.start_logits[:, 0] + found.end_logits[:, 0]
        score = tf.where(found.counts > 0, score, tf.float32.min)
        answered = found.counts > 0
        if settings.version_2:
            answered &= null_score - score <= settings.null_score_diff_threshold

        # One column more, for no answer: places -1 and "", like what stands after the last.
        byte_starts, byte_ends = (
            tf.pad(places, [[0, 0], [0, 1]], constant_values=-1)
            for places in (found.starts, found.ends)
        )
        texts = tf.strings.substr(
            context[:, tf.newaxis], tf.maximum(byte_starts, 0), byte_ends - byte_starts
        )
        characters = self._characters(context, tf.concat([byte_starts, byte_ends], axis=1))
        starts, ends = tf.split(characters, 2, axis=1)
        return {
            "answer": tf.where(answered, texts[:, 0], ""),
            "start": tf.where(answered, starts[:, 0], -1),
            "end": tf.where(answered, ends[:, 0], -1),
            "score": tf.cast(score, tf.float32),
            "null_score": tf.cast(null_score, tf.float32),
        } | self._n_best(found, texts, starts, ends)

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Scores windows that the client cut, int32 [B, S] each.

        Returns:
            `start_logits` and `end_logits`, float32 [B, S]; 0 on padding.
        """
        limit = self.network.config.max_position_embeddings
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, limit)
        outputs = self.network(rows.input_ids, rows.segment_ids)
        return {name: rows.padded(outputs[name]) for name in ("start_logits", "end_logits")}

    def _n_best(
        self, found: Decoded, texts: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Sorts no answer in where it is a candidate, and shares a probability of 1 among all.

        Args:
            found: the candidates.
            texts: strings [B, K + 1], the last of no answer.
            starts: int32 [B, K + 1], characters.
            ends: int32 [B, K + 1].

        Returns:
            The `nbest_` outputs.
        """
        settings = self.settings
        with_null = tf.ones_like(found.counts, tf.bool)
        if not settings.version_2:
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
        # Stable: of equals, no answer is the last.
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        columns = {
            "answers": texts,
            "starts": starts,
            "ends": ends,
            "probabilities": tf.cast(tf.nn.softmax(scores), tf.float32),
            "start_logits": tf.cast(start_logits, tf.float32),
            "end_logits": tf.cast(end_logits, tf.float32),
        }
        shown = settings.n_best_size + int(settings.version_2)
        return {
            f"nbest_{name}": tf.gather(values, order, batch_dims=1)[:, :shown]
            for name, values in columns.items()
        }

    def _characters(self, context: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Turns bytes of contexts, int32 [B, any], into characters; -1 stays."""
        offsets = tf.RaggedTensor.from_tensor(tf.maximum(places, 0))
        characters = tf.reshape(
            byte_to_char_offsets(valid_utf8(context), offsets).values, tf.shape(places)
        )
        return tf.where(places < 0, -1, characters)
