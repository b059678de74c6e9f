"""Defines the serving signatures of question answering, for strings and for token ids."""

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.serving.engines.opening import NetworkSpec
from keras_bert.serving.inputs import TOKEN_ID_SPECS, UnpaddedRows
from keras_bert.serving.network import Network
from keras_bert.serving.saved_model import Outputs, ServedTask, Steps
from keras_bert.tasks.question_answering.processor import SpanProcessor
from keras_bert.tasks.question_answering.span_windows import SpanWindows

_LOGITS = ("start_logits", "end_logits")


class ServedQuestionAnswering(ServedTask):
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

    def spec(self) -> NetworkSpec:
        """Describes the outputs of the network."""
        return NetworkSpec(dict.fromkeys(_LOGITS, "token"))

    def steps(self) -> dict[str, Steps]:
        """Returns the steps of each signature."""
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in ("question", "context")]
        return {
            "serving_default": Steps(texts, self.processor.preprocess, self._answers),
            "token_ids": Steps(TOKEN_ID_SPECS, self._of_token_ids, self._logits),
        }

    def _answers(self, outputs: Outputs, inputs: SpanWindows) -> dict[str, tf.Tensor]:
        """Returns the outputs of `SpanProcessor.decode`, with scores in float32."""
        return {
            name: tf.cast(value, tf.float32) if value.dtype.is_floating else value
            for name, value in self.processor.decode(outputs, inputs).items()
        }

    def _of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> UnpaddedRows:
        """Removes the padding of windows that the client has tokenized, int32 [B, S] each."""
        return UnpaddedRows.of_request(input_ids, input_mask, segment_ids, self.network.config)

    def _logits(self, outputs: Outputs, rows: UnpaddedRows) -> dict[str, tf.Tensor]:
        """Returns the logits of the tokens of each window.

        Returns:
            "start_logits" and "end_logits", float32 [B, S] each, which are 0 at padding; and
            "truncated", bool [B], whether tokens beyond the model's positions were ignored.
        """
        logits = {name: rows.padded(outputs[name]) for name in _LOGITS}
        return {**logits, "truncated": rows.truncated}
