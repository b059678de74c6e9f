"""Defines BERT with both pre-training heads."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_bert.config import BertConfig
from keras_bert.models.bert_network import BertNetwork, batch_and_length
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.layers.heads import MaskedLMHead, linear_head


@keras.saving.register_keras_serializable(package="keras_bert")
class BertPretrainer(BertNetwork):
    """BERT with the heads for masked LM and next sentence prediction.

    With `is_decoder` in the config, this is a left-to-right model: the masked-LM head predicts the
    next token at every position (Devlin et al. 2019, sections 3.1 and 5.1).

    Args:
        config: a `BertConfig` or its dict.
        dtype: dtype policy, such as "mixed_bfloat16"; defaults to the global policy.
    """

    heads = ("masked_lm", "next_sentence")

    def __init__(self, config: BertConfig | Mapping[str, Any], **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.encoder = BertEncoder(config, dtype=dtype)
        self.masked_lm = MaskedLMHead(config, name="masked_lm", dtype=dtype)
        self.next_sentence = linear_head(2, config.initializer_range, "next_sentence", dtype)
        self.masked_lm.build((None, None, config.hidden_size))
        self.next_sentence.build((None, config.hidden_size))
        self.build((None, None))

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The keys that every input dict must contain."""
        names = super().required_inputs
        return names if self.config.is_decoder else (*names, "masked_lm_positions")

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"masked_lm_logits": [B, P, V], "next_sentence_logits": [B, 2]}, float32.

        V is the vocabulary size, and P the number of predictions in a row. A left-to-right model
        needs no "masked_lm_positions", and returns {"next_token_logits": [B, S, V]}.

        Args:
            inputs: the inputs of `BertEncoder.call`, and "masked_lm_positions" [B, P] int32, below
                S. With "next_sentence_positions" [B, K] int32, the first position of each example
                in a row, the next-sentence logits are [B, K, 2].
            training: whether to apply dropout.
        """
        hidden = self.encoder(inputs, training=training)
        table = self.encoder.embeddings.word_embeddings
        if self.config.is_decoder:
            return {"next_token_logits": self.masked_lm(hidden["sequence_output"], None, table)}
        pooled = hidden["pooled_output"]
        if "next_sentence_positions" in inputs:
            pooled = self.encoder.pooler(
                hidden["sequence_output"], inputs["next_sentence_positions"]
            )
        return {
            "masked_lm_logits": self.masked_lm(
                hidden["sequence_output"], inputs["masked_lm_positions"], table
            ),
            "next_sentence_logits": self.next_sentence(pooled),
        }

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shapes of the outputs."""
        batch, length = batch_and_length(input_shape)
        words = self.config.vocab_size
        if self.config.is_decoder:
            return {"next_token_logits": (batch, length, words)}
        shapes = input_shape if isinstance(input_shape, Mapping) else {}
        _, predictions = shapes.get("masked_lm_positions", (batch, None))
        examples = shapes.get("next_sentence_positions", (batch,))
        return {
            "masked_lm_logits": (batch, predictions, words),
            "next_sentence_logits": (*examples, 2),
        }
