"""Defines BERT for extractive question answering."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_bert.config import BertConfig
from keras_bert.models.bert_network import BertNetwork, batch_and_length
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.layers.heads import linear_head


@keras.saving.register_keras_serializable(package="keras_bert")
class BertSpanLabeler(BertNetwork):
    """BERT that scores every token as the start and as the end of an answer span.

    Args:
        config: a `BertConfig` or its dict.
        dtype: dtype policy; defaults to the global policy.
    """

    heads = ("span",)
    per_token = True

    def __init__(self, config: BertConfig | Mapping[str, Any], **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.encoder = BertEncoder(config, dtype=dtype)
        self.span = linear_head(2, config.initializer_range, "span", dtype)
        self.span.build((None, None, config.hidden_size))
        self.build((None, None))

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"start_logits", "end_logits"}, each [B, S] float32.

        For the inputs, see `BertEncoder.call`.
        """
        logits = self.span(self.encoder(inputs, training=training)["sequence_output"])
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shapes of the outputs."""
        shape = batch_and_length(input_shape)
        return {"start_logits": shape, "end_logits": shape}
