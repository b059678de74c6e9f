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
    head_input = "pooled_output"

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shape of the logits."""
        return {"logits": (batch_and_length(input_shape)[0], self.num_labels)}
