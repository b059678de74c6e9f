"""Defines the network that computes one vector per text, the pooled hidden states of an encoder.

Shapes: B texts, S tokens, H hidden size.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_bert.models.bert_network import batch_and_length
from keras_bert.models.encoder import BertEncoder

POOLINGS = ("mean", "cls")


@keras.saving.register_keras_serializable(package="keras_bert")
class SentenceEncoder(BertEncoder):
    """An encoder with the layers that a model of sentence-transformers applies to a pooled vector.

    Args:
        config: a `BertConfig` or its dict.
        dense: the arguments of each layer: "units", "activation" and "use_bias".
    """

    def __init__(self, config: Any, dense: Sequence[Mapping[str, Any]] = (), **kwargs: Any):
        self._dense_options = [dict(options) for options in dense]
        super().__init__(config, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Creates all variables; called by the constructor."""
        if self.embeddings.built:
            return
        super().build(input_shape)
        self.dense = [
            keras.layers.Dense(**options, name=f"dense_{index}", dtype="float32")
            for index, options in enumerate(self._dense_options)
        ]
        self.width = self.config.hidden_size
        for layer in self.dense:
            layer.build((None, self.width))
            self.width = layer.units

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "dense": self._dense_options}


def project(encoder: BertEncoder, vectors: Any) -> Any:
    """Applies the Dense layers of a `SentenceEncoder` to pooled vectors, if `encoder` is one."""
    for layer in getattr(encoder, "dense", ()):
        vectors = layer(vectors)
    return vectors


def vector_size(encoder: BertEncoder) -> int:
    """Returns the size of the vectors of texts."""
    return getattr(encoder, "width", encoder.config.hidden_size)


def pool(hidden: Any, input_mask: Any, pooling: str) -> Any:
    """Reduces hidden states [B, S, H] to vectors [B, H], float32.

    `pooling` is `cls`, the hidden state of [CLS], or `mean`, the mean over all tokens, including
    [CLS] and [SEP]. `input_mask` [B, S] is 1 for tokens and 0 for padding.
    """
    hidden = ops.cast(hidden, "float32")
    if pooling == "cls":
        return hidden[:, 0]
    mask = ops.cast(input_mask, "float32")[..., None]
    return ops.sum(hidden * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0)


@keras.saving.register_keras_serializable(package="keras_bert")
class PooledEncoder(keras.Model):
    """An encoder followed by a pooling of its hidden states; it shares the encoder's weights.

    Args:
        encoder: the encoder.
        pooling: `mean` or `cls`.
    """

    per_token = False

    def __init__(self, encoder: BertEncoder, pooling: str = "mean", **kwargs: Any):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.pooling = pooling
        self.config = encoder.config

    def build(self, input_shape: Any = None) -> None:
        """Does nothing; the encoder has created all variables."""

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"vectors": [B, H or width]}, float32; for the inputs, see `BertEncoder.call`."""
        hidden = self.encoder(inputs, training=training)["sequence_output"]
        return {"vectors": project(self.encoder, pool(hidden, inputs["input_mask"], self.pooling))}

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shape of the vectors."""
        return {"vectors": (batch_and_length(input_shape)[0], vector_size(self.encoder))}

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": encoder, "pooling": self.pooling}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Creates the network from the result of `get_config`."""
        encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects)
        return cls(**{**config, "encoder": encoder})
