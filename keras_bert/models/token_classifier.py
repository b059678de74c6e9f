"""Defines BERT for token classification, such as named entity recognition."""

from typing import Any

import keras

from keras_bert.models.bert_network import batch_and_length
from keras_bert.models.linear_classifier import LinearClassifier


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTokenClassifier(LinearClassifier):
    """BERT with dropout and a linear layer on the hidden state of every token.

    Args:
        config: a `BertConfig` or its dict.
        num_labels: the number of tags.
        dtype: dtype policy; defaults to the global policy.
    """

    per_token = True
    head_input = "sequence_output"

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shape of the logits."""
        return {"logits": (*batch_and_length(input_shape), self.num_labels)}
