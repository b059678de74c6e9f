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
        pooling: `mean` or `cls`; or several names, of these and `pooled` for the pooled output.
    """

    per_token = False

    def __init__(self, encoder: BertEncoder, pooling: str | Sequence[str] = "mean", **kwargs: Any):
        # Keras scales the loss of a model, and JAX selects its kernels, by the model's own policy.
        super().__init__(**{"dtype": encoder.dtype_policy, **kwargs})
        self.encoder = encoder
        self.pooling = pooling
        self.config = encoder.config

    def build(self, input_shape: Any = None) -> None:
        """Does nothing; the encoder has created all variables."""

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns {"vectors": float32 [B, H or width], or [B, k, H] for k names of poolings}.

        The vectors of several poolings are those before the Dense layers of a `SentenceEncoder`.
        For the inputs, see `BertEncoder.call`.
        """
        outputs = self.encoder(inputs, training=training)

        def vectors(pooling: str) -> Any:
            if pooling == "pooled":
                return ops.cast(outputs["pooled_output"], "float32")
            return pool(outputs["sequence_output"], inputs["input_mask"], pooling)

        if isinstance(self.pooling, str):
            return {"vectors": project(self.encoder, vectors(self.pooling))}
        return {"vectors": ops.stack([vectors(name) for name in self.pooling], axis=1)}

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The keys that every input dict must contain."""
        return self.encoder.required_inputs

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple]:
        """Returns the shape of the vectors."""
        batch, _ = batch_and_length(input_shape)
        if isinstance(self.pooling, str):
            return {"vectors": (batch, vector_size(self.encoder))}
        return {"vectors": (batch, len(self.pooling), self.config.hidden_size)}

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {**super().get_config(), "encoder": encoder, "pooling": self.pooling}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Creates the network from the result of `get_config`."""
        encoder = keras.saving.deserialize_keras_object(config["encoder"], custom_objects)
        return cls(**{**config, "encoder": encoder})
