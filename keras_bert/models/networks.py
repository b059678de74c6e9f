"""BERT with heads: the pre-trainer and the three shapes of fine-tuned model.

In: the encoder's inputs, a dict of int32 tensors (see encoder.py), with "masked_lm_positions"
[B, P] for the pre-trainer, and "next_sentence_positions" [B, K] if its rows are packed. Out: a
dict of float32 logits. A left-to-right pre-trainer (`is_decoder` in the config) takes the encoder's
inputs alone. All are ordinary keras.Models whose weights exist after construction; the
encoder is at `.encoder`. The fine-tuned shapes say by `per_token` whether their logits are of the
pieces, [B, S, ...], or of the examples, [B, ...].

B batch, S length, P predictions, K examples a packed row has room for, V vocabulary.
"""

from typing import Any

import keras

from keras_bert.config import BertConfig
from keras_bert.models.encoder import BertEncoder
from keras_bert.models.layers.dropout import Dropout
from keras_bert.models.layers.heads import MaskedLMHead, linear_head


@keras.saving.register_keras_serializable(package="keras_bert")
class BertPretrainer(keras.Model):
    """BERT with both pre-training heads, masked LM and next sentence (Devlin et al. 2019, 3.1).

    With `is_decoder` in its config it is the left-to-right model of section 5.1: the masked-LM head
    scores, at every piece, what comes next.

    Args:
        config: sizes and settings, or their dict.
        dtype: dtype policy, such as "mixed_bfloat16"; by default the global one.
    """

    def __init__(self, config: BertConfig | dict, **kwargs: Any):
        super().__init__(**kwargs)
        self.encoder = BertEncoder(config, dtype=self.dtype_policy.name)
        self.config = config = self.encoder.config
        self.masked_lm = MaskedLMHead(
            config.hidden_size,
            config.vocab_size,
            config.hidden_act,
            config.initializer_range,
            config.layer_norm_eps,
            name="masked_lm",
            dtype=self.dtype_policy.name,
        )
        self.next_sentence = linear_head(2, config.initializer_range, name="next_sentence")
        self.masked_lm.build((None, None, config.hidden_size))
        self.next_sentence.build((None, config.hidden_size))
        self.built = True

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"masked_lm_logits" [B, P, V], "next_sentence_logits" [B, 2]}, float32.

        A left-to-right model returns {"next_token_logits" [B, S, V]}.

        Args:
            inputs: the encoder's, and "masked_lm_positions" [B, P] int32, below S. With
                "next_sentence_positions" [B, K] int32, where the examples of packed rows start,
                the next-sentence logits are [B, K, 2].
            training: whether dropout is on.
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

    def get_config(self) -> dict[str, Any]:
        """Returns what the constructor takes."""
        return {**super().get_config(), "config": self.config.to_dict()}


class _LinearClassifier(keras.Model):
    """What both classifiers are: BERT, dropout and one linear layer; they differ in its input."""

    def __init__(self, config: BertConfig | dict, num_labels: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.encoder = BertEncoder(config, dtype=self.dtype_policy.name)
        self.config = config = self.encoder.config
        self.num_labels = num_labels
        self.dropout = Dropout(
            config.hidden_dropout_prob, self.encoder.next_dropout_site, dtype=self.dtype_policy.name
        )
        self.classifier = linear_head(num_labels, config.initializer_range, name="classifier")
        self.classifier.build((None, config.hidden_size))
        self.built = True

    def _classify(self, output: str, inputs: dict[str, Any], training: bool | None) -> Any:
        """Returns the logits of one of the encoder's outputs."""
        seed = self.encoder.dropout_seed(inputs, training)
        # The head drops out by the encoder's seeds too.
        seeded = inputs if seed is None else {**inputs, "dropout_seed": seed}
        hidden = self.encoder(seeded, training=training)[output]
        return self.classifier(self.dropout(hidden, seed))

    def get_config(self) -> dict[str, Any]:
        """Returns what the constructor takes."""
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "num_labels": self.num_labels,
        }


@keras.saving.register_keras_serializable(package="keras_bert")
class BertClassifier(_LinearClassifier):
    """BERT with one linear layer on the pooled output, after dropout.

    Args:
        config: sizes and settings, or their dict.
        num_labels: classes, or 1 for a regression.
        dtype: dtype policy; by default the global one.
    """

    per_token = False

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"logits" [B, num_labels]} float32.

        Args:
            inputs: the encoder's.
            training: whether dropout is on.
        """
        return {"logits": self._classify("pooled_output", inputs, training)}


@keras.saving.register_keras_serializable(package="keras_bert")
class BertTokenClassifier(_LinearClassifier):
    """BERT with one linear layer on every piece's hidden state, after dropout.

    Args:
        config: sizes and settings, or their dict.
        num_labels: tags.
        dtype: dtype policy; by default the global one.
    """

    per_token = True

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"logits" [B, S, num_labels]} float32.

        Args:
            inputs: the encoder's.
            training: whether dropout is on.
        """
        return {"logits": self._classify("sequence_output", inputs, training)}


@keras.saving.register_keras_serializable(package="keras_bert")
class BertSpanLabeler(keras.Model):
    """BERT that scores every piece as the start and as the end of an answer.

    Args:
        config: sizes and settings, or their dict.
        dtype: dtype policy; by default the global one.
    """

    per_token = True

    def __init__(self, config: BertConfig | dict, **kwargs: Any):
        super().__init__(**kwargs)
        self.encoder = BertEncoder(config, dtype=self.dtype_policy.name)
        self.config = config = self.encoder.config
        self.span = linear_head(2, config.initializer_range, name="span")
        self.span.build((None, None, config.hidden_size))
        self.built = True

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"start_logits" [B, S], "end_logits" [B, S]} float32.

        Args:
            inputs: the encoder's.
            training: whether dropout is on.
        """
        logits = self.span(self.encoder(inputs, training=training)["sequence_output"])
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}

    def get_config(self) -> dict[str, Any]:
        """Returns what the constructor takes."""
        return {**super().get_config(), "config": self.config.to_dict()}
