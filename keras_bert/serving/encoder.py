"""Computes the hidden states of keras_bert.models.encoder with fewer ops, for serving.

Only attention is computed on padded rows; elsewhere the tokens of a batch are concatenated, [T, H].
Query, key and value are computed by one matmul, in which the query's kernel and bias are divided
by √D, so that the attention scores need no scaling. TensorFlow fuses each matmul with its bias and
activation. Weights are plain variables, because TensorFlow Serving cannot load a Keras model in a
SavedModel.

B rows, S length of the longest row, T tokens of all rows, H hidden size, N heads, D head size.
"""

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from keras_bert.config import BertConfig

# Added to the attention scores of padding, as in Google's released code.
MASKED_SCORE = -10000.0

_ACTIVATIONS = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: tf.nn.gelu(x, approximate=True),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
}


class ServedEncoder(tf.Module):
    """Computes BERT's encoder on rows without padding.

    `weights` maps variable paths below the encoder, such as `layer_0/output/dense/bias`, to float32
    arrays. `compute_type` is the dtype of the matmuls, `float32` or `bfloat16`; residual sums and
    layer norms are float32.
    """

    def __init__(self, config: BertConfig, weights: Mapping[str, np.ndarray], compute_type: str):
        super().__init__(name="encoder")
        self.config = config
        self.compute_type = tf.as_dtype(compute_type)
        self.embeddings = [
            tf.Variable(weights[f"embeddings/{kind}_embeddings"], trainable=False, name=kind)
            for kind in ("word", "position", "token_type")
        ]
        self.embeddings_norm = LayerNorm(config, weights, "embeddings/LayerNorm")
        self.blocks = [
            _Block(config, weights, f"layer_{index}", self.compute_type)
            for index in range(config.num_hidden_layers)
        ]

    def __call__(
        self, input_ids: tf.Tensor, segment_ids: tf.Tensor, row_splits: tf.Tensor
    ) -> tf.Tensor:
        """Computes hidden states, float32 [T, H], from input and segment ids, int32 [T] each.

        `row_splits`, int32 [B + 1], has the start of each row, followed by T.
        """
        lengths = row_splits[1:] - row_splits[:-1]
        longest = tf.reduce_max(lengths)
        place = tf.range(longest)[tf.newaxis]
        real = place < lengths[:, tf.newaxis]  # [B, S]
        # [B * S]: the token index at each position. Padding points to token 0 and is masked.
        to_rows = tf.reshape(tf.where(real, row_splits[:-1, tf.newaxis] + place, 0), [-1])
        # [T]: the position of each token in [B * S].
        to_tokens = tf.cast(tf.where(tf.reshape(real, [-1]))[:, 0], tf.int32)
        mask = (1.0 - tf.cast(real, tf.float32))[:, tf.newaxis, tf.newaxis] * MASKED_SCORE
        mask = tf.cast(mask, self.compute_type)

        word, position, token_type = self.embeddings
        hidden = self.embeddings_norm(
            tf.gather(word, input_ids)
            + tf.gather(position, to_tokens % longest)
            + tf.gather(token_type, segment_ids)
        )
        heads = self.config.num_attention_heads
        width = self.config.hidden_size // heads
        # Computed once for all layers: in a batch of one row, launching ops takes longer than
        # executing them.
        shape = tf.stack([tf.size(lengths), longest, 3, heads, width])
        for block in self.blocks:
            hidden = block(hidden, mask, shape, to_rows, to_tokens)
        return hidden


class _Block(tf.Module):
    def __init__(
        self,
        config: BertConfig,
        weights: Mapping[str, np.ndarray],
        name: str,
        compute_type: tf.DType,
    ):
        super().__init__(name=name)
        width = config.hidden_size // config.num_attention_heads
        attention = f"{name}/attention"
        # Scaling the query weights scales the attention scores.
        scales = (1.0 / math.sqrt(width), 1.0, 1.0)
        kernel, bias = (
            np.concatenate(
                [
                    scale * weights[f"{attention}/self/{kind}/{part}"]
                    for scale, kind in zip(scales, ("query", "key", "value"), strict=True)
                ],
                axis=-1,
            )
            for part in ("kernel", "bias")
        )
        self.query_key_value = ServedDense(kernel, bias, compute_type)
        self.attended = ServedDense.of(weights, f"{attention}/output/dense", compute_type)
        self.attention_norm = LayerNorm(config, weights, f"{attention}/output/LayerNorm")
        self.intermediate = ServedDense.of(
            weights, f"{name}/intermediate/dense", compute_type, config.hidden_act
        )
        self.output = ServedDense.of(weights, f"{name}/output/dense", compute_type)
        self.output_norm = LayerNorm(config, weights, f"{name}/output/LayerNorm")

    def __call__(
        self,
        hidden: tf.Tensor,
        mask: tf.Tensor,
        shape: tf.Tensor,
        to_rows: tf.Tensor | None = None,
        to_tokens: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Computes the hidden states after one transformer layer, in the shape of `hidden`.

        Args:
            hidden: [T, H], or [B * S, H] if the tokens are already padded.
            mask: added to the attention scores, [B, 1, 1, S]: MASKED_SCORE at padding, 0 elsewhere.
            shape: int32 [5] with the values B, S, 3, N, D.
            to_rows: int32 [B * S], the token index at each position; None if `hidden` is padded.
            to_tokens: int32 [T], the position of each token; None if `hidden` is padded.
        """
        projected = self.query_key_value(hidden)
        if to_rows is not None:
            projected = tf.gather(projected, to_rows)
        projected = tf.reshape(projected, shape)
        query, key, value = tf.unstack(tf.transpose(projected, [2, 0, 3, 1, 4]), 3)  # [B, N, S, D]
        probabilities = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) + mask)
        context = tf.transpose(tf.matmul(probabilities, value), [0, 2, 1, 3])
        context = tf.reshape(context, [-1, hidden.shape[-1]])
        if to_tokens is not None:
            context = tf.gather(context, to_tokens)
        hidden = self.attention_norm(tf.cast(self.attended(context), tf.float32) + hidden)
        widened = self.output(self.intermediate(hidden))
        return self.output_norm(tf.cast(widened, tf.float32) + hidden)


class ServedDense(tf.Module):
    """A dense layer, act(x · kernel + bias), in the compute dtype."""

    def __init__(
        self, kernel: np.ndarray, bias: np.ndarray, compute_type: tf.DType, activation: str = ""
    ):
        super().__init__()
        self.kernel = tf.Variable(tf.cast(kernel, compute_type), trainable=False, name="kernel")
        self.bias = tf.Variable(tf.cast(bias, compute_type), trainable=False, name="bias")
        self.activation = _ACTIVATIONS[activation] if activation else None

    @classmethod
    def of(
        cls,
        weights: Mapping[str, np.ndarray],
        path: str,
        compute_type: tf.DType = tf.float32,
        activation: str = "",
    ) -> "ServedDense":
        """Creates the layer from the weights `path`/kernel and `path`/bias."""
        return cls(weights[f"{path}/kernel"], weights[f"{path}/bias"], compute_type, activation)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Applies the layer: [T, in] -> [T, out]."""
        x = tf.nn.bias_add(tf.matmul(tf.cast(x, self.kernel.dtype), self.kernel), self.bias)
        return self.activation(x) if self.activation else x


class LayerNorm(tf.Module):
    """Layer normalization over the last axis, in float32."""

    def __init__(self, config: BertConfig, weights: Mapping[str, np.ndarray], path: str):
        super().__init__()
        self.gamma = tf.Variable(weights[f"{path}/gamma"], trainable=False, name="gamma")
        self.beta = tf.Variable(weights[f"{path}/beta"], trainable=False, name="beta")
        self.epsilon = config.layer_norm_eps

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Normalizes [T, H]."""
        centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
        return centred * tf.math.rsqrt(variance + self.epsilon) * self.gamma + self.beta
