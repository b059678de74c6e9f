"""Multi-head self-attention (Vaswani et al. 2017), without the output projection.

In: hidden states [B, S, H] and the input mask [B, S]. Out: the heads' contexts side by side,
[B, S, H].
"""

import math
from typing import Any

import keras
from keras import ops

from keras_bert.layers.dropout import Dropout

# What Google's released code adds to the scores of padding.
_MASKED_SCORE = -10000.0


def key_mask(input_mask: Any) -> Any:
    """Returns what to add to attention scores: 0 for real keys, -10000 for padding.

    Args:
        input_mask: [B, S] int32, 1 for a real piece, 0 for padding.

    Returns:
        [B, 1, 1, S] float32; it broadcasts over heads and queries.
    """
    return (1.0 - ops.cast(input_mask, "float32"))[:, None, None, :] * _MASKED_SCORE


class SelfAttention(keras.layers.Layer):
    """Computes softmax(QKᵀ/√D + mask)V for each head.

    Args:
        hidden_size: width in and out, H.
        num_attention_heads: heads, N; each is D = H / N wide.
        initializer_range: standard deviation of the truncated normal the kernels start from.
        dropout_rate: probability of dropping an attention probability.
        dropout_site: number of the dropout place.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        initializer_range: float,
        dropout_rate: float,
        dropout_site: int,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.initializer_range = initializer_range
        self.query = self._projection("query")
        self.key = self._projection("key")
        self.value = self._projection("value")
        self.dropout = Dropout(dropout_rate, dropout_site, dtype=self.dtype_policy.name)

    def _projection(self, name: str) -> keras.layers.Dense:
        return keras.layers.Dense(
            self.hidden_size,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_range),
            name=name,
            dtype=self.dtype_policy.name,
        )

    def build(self, hidden_shape: tuple) -> None:
        """Makes the query, key and value kernels [H, H] and biases [H]."""
        for projection in (self.query, self.key, self.value):
            projection.build(hidden_shape)

    def call(self, hidden: Any, input_mask: Any, dropout_seed: Any = None) -> Any:
        """Returns the contexts [B, S, H].

        Args:
            hidden: [B, S, H].
            input_mask: [B, S] int32, 1 for a real piece, 0 for padding.
            dropout_seed: [B] int32, or None outside training.
        """
        # Scaling the queries costs S·H products where scaling the scores costs N·S·S.
        scale = 1.0 / math.sqrt(self.hidden_size // self.num_attention_heads)
        query = self._split_heads(self.query(hidden) * scale)
        key = self._split_heads(self.key(hidden))
        value = self._split_heads(self.value(hidden))
        scores = ops.cast(ops.einsum("bnqd,bnkd->bnqk", query, key), "float32")
        probabilities = ops.cast(
            ops.softmax(scores + key_mask(input_mask), axis=-1), self.compute_dtype
        )
        probabilities = self.dropout(probabilities, dropout_seed)
        context = ops.matmul(probabilities, value)  # [B, N, S, D]
        return ops.reshape(ops.transpose(context, (0, 2, 1, 3)), ops.shape(hidden))

    def _split_heads(self, x: Any) -> Any:
        """Turns [B, S, H] into [B, N, S, D]."""
        batch, length, width = ops.shape(x)
        heads = self.num_attention_heads
        return ops.transpose(ops.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))
