"""BERT as a classifier of tokens, such as a named-entity tagger."""

from typing import Any

import keras

from keras_bert.models.bert_network import batch_and_length
from keras_bert.models.linear_classifier import LinearClassifier


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTokenClassifier(LinearClassifier):
    """BERT with one linear layer on the hidden state of every token, after dropout.

    Args:
        config: sizes and settings, or their dict.
        num_labels: number of tags.
        dtype: dtype policy; by default the global one.
    """

    per_token = True

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Computes {"logits" [B, S, num_labels]}, float32.

        Args:
            inputs: the encoder's.
            training: whether dropout is on.
        """
        return {"logits": self._classify("sequence_output", inputs, training)}

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shape of the logits."""
        return {"logits": (*batch_and_length(input_shape), self.num_labels)}
