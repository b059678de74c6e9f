"""Defines the serving signatures of question answering, for strings and for token ids."""

from collections.abc import Callable

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.serving import token_ids
from keras_bert.serving.network import Network
from keras_bert.tasks.question_answering.processor import SpanProcessor


class ServedQuestionAnswering(tf.Module):
    """The SavedModel signatures of question answering.

    Raises:
        InputError: `max_seq_length` exceeds the model's number of positions.
    """

    def __init__(self, network: Network, processor: SpanProcessor):
        length, limit = processor.settings.max_seq_length, network.config.max_position_embeddings
        if length > limit:
            raise InputError(
                f"max_seq_length={length}: expected at most the model's {limit} positions"
            )
        super().__init__(name="question_answering")
        self.network = network
        self.processor = processor

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures by name."""
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in ("question", "context")]
        return {
            "serving_default": tf.function(self.of_texts, texts, autograph=False),
            "token_ids": tf.function(self.of_token_ids, token_ids.SPECS, autograph=False),
        }

    def of_texts(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        """Answers each question, strings [B], from its context, strings [B].

        Returns the outputs of `SpanProcessor.decode`, with scores in float32.
        """
        inputs = self.processor.preprocess(question, context)
        outputs = self.network(inputs.input_ids, inputs.segment_ids)
        answers = self.processor.decode(outputs, inputs)
        return {
            name: tf.cast(value, tf.float32) if value.dtype.is_floating else value
            for name, value in answers.items()
        }

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Computes the logits of windows that the client has tokenized, given as int32 [B, S] each.

        Returns:
            "start_logits" and "end_logits", float32 [B, S] each, which are 0 at padding; and
            "truncated", bool [B], whether tokens beyond the model's positions were ignored.
        """
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, self.network.config)
        outputs = self.network(rows.input_ids, rows.segment_ids)
        logits = {name: rows.padded(outputs[name]) for name in ("start_logits", "end_logits")}
        return {**logits, "truncated": rows.truncated}
