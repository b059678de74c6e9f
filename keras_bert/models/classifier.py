"""Defines BERT for the classification of texts or pairs of texts."""

from typing import Any

import keras

from keras_bert.models.bert_network import batch_and_length
from keras_bert.models.linear_classifier import LinearClassifier


@keras.saving.register_keras_serializable(package="keras_bert")
class BertClassifier(LinearClassifier):
    """BERT with dropout and a linear layer on the pooled output.

    Args:
        config: a `BertConfig` or its dict.
        num_labels: the number of classes, or 1 for regression.
        dtype: dtype policy; defaults to the global policy.
    """

    per_token = False

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"logits": [B, num_labels]}, float32; for the inputs, see `BertEncoder.call`."""
        return {"logits": self._classify("pooled_output", inputs, training)}

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shape of the logits."""
        return {"logits": (batch_and_length(input_shape)[0], self.num_labels)}
