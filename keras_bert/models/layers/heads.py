"""What the models put on the encoder: the pooler, the masked-LM head.

Plain linear heads (next sentence, classes, spans, tags) are `linear_head`, a Dense whose result
is float32 in every precision.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert.models.layers.activations import ACTIVATIONS
from keras_bert.models.layers.chain import chain
from keras_bert.models.layers.dense_product import DenseProduct
from keras_bert.models.layers.layer_norm import LayerNorm, layer_norm


@chain
def activation_norm(
    product: Any,
    bias: Any,
    gamma: Any,
    beta: Any,
    *,
    activation: Callable[[Any], Any],
    epsilon: float,
) -> Any:
    """Returns LN(act(product + bias)), computed in float32.

    Args:
        product: [..., H].
        bias: [H].
        gamma: [H].
        beta: [H].
        activation: element-wise.
        epsilon: of the LayerNorm.

    Returns:
        [..., H] in the type of the product.
    """
    x = activation(ops.cast(product, "float32") + bias)
    return ops.cast(layer_norm(x, gamma, beta, epsilon), product.dtype)


@chain
def biased_logits(product: Any, bias: Any) -> Any:
    """Adds the bias in float32.

    Args:
        product: [..., V].
        bias: [V].

    Returns:
        [..., V] float32.
    """
    return ops.cast(product, "float32") + bias


@ops.custom_gradient
def tied_product(x: Any, table: Any) -> Any:
    """Returns x·tableᵀ, with a gradient that never copies a transposed table.

    The gradient of the transpose would: that copy takes longer than the product.

    Args:
        x: [B * P, H].
        table: [V, H].

    Returns:
        [B * P, V].
    """

    def gradient(*given: Any, upstream: Any = None) -> tuple[Any, Any]:
        if upstream is None:
            (upstream,) = given
        return ops.matmul(upstream, table), ops.matmul(ops.transpose(upstream), x)

    return ops.matmul(x, ops.transpose(table)), gradient


def take_positions(hidden: Any, positions: Any) -> Any:
    """Takes the hidden states at some positions of each row.

    Args:
        hidden: [B, S, H].
        positions: [B, P] int32, below S.

    Returns:
        [B * P, H].
    """
    batch, length, width = ops.shape(hidden)
    rows = ops.cast(positions, "int32") + ops.arange(batch, dtype="int32")[:, None] * length
    return ops.take(ops.reshape(hidden, (-1, width)), ops.reshape(rows, (-1,)), axis=0)


class Pooler(keras.layers.Layer):
    """Turns the hidden state of an example's first piece into tanh(W h + b).

    Args:
        hidden_size: width in and out, H.
        initializer_range: standard deviation of the truncated normal the kernel starts from.
    """

    def __init__(self, hidden_size: int, initializer_range: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(
            hidden_size,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=initializer_range),
            name="dense",
            dtype=self.dtype_policy.name,
        )

    def build(self, hidden_shape: tuple) -> None:
        """Makes the kernel [H, H] and bias [H]."""
        self.dense.build((hidden_shape[0], hidden_shape[-1]))

    def call(self, hidden: Any, positions: Any = None) -> Any:
        """Pools the hidden states.

        Args:
            hidden: [B, S, H].
            positions: [B, K] int32, where the examples of each row start; None where a row is one
                example.

        Returns:
            [B, H], or [B, K, H] with positions.
        """
        if positions is None:
            return ops.tanh(self.dense(hidden[:, 0]))
        pooled = ops.tanh(self.dense(take_positions(hidden, positions)))
        return ops.reshape(pooled, (*ops.shape(positions), pooled.shape[-1]))


class MaskedLMHead(keras.layers.Layer):
    """Scores every piece of the vocabulary at the masked positions.

    The positions are gathered first: the vocabulary product is the dearest of the model, and of
    128 positions some 20 are masked. A left-to-right model scores every position.

    Args:
        hidden_size: width of the hidden states, H.
        vocab_size: pieces to score, V.
        hidden_act: activation of the transform.
        initializer_range: standard deviation of the truncated normal the kernel starts from.
        layer_norm_eps: epsilon of the LayerNorm.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        hidden_act: str,
        initializer_range: float,
        layer_norm_eps: float,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.dense = DenseProduct(
            hidden_size, initializer_range, name="dense", dtype=self.dtype_policy.name
        )
        self.activation = ACTIVATIONS[hidden_act]
        self.layer_norm = LayerNorm(layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy.name)

    def build(self, hidden_shape: tuple) -> None:
        """Makes the transform and the vocabulary's bias; the table itself is the encoder's."""
        self.dense.build((None, hidden_shape[-1]))
        self.layer_norm.build((None, hidden_shape[-1]))
        self.output_bias = self.add_weight(
            (self.vocab_size,), initializer="zeros", name="output_bias", autocast=False
        )

    def call(self, hidden: Any, positions: Any, word_embeddings: Any) -> Any:
        """Scores the vocabulary at each position.

        Args:
            hidden: [B, S, H].
            positions: [B, P] int32, below S; None for all S.
            word_embeddings: [V, H], the encoder's table (Press & Wolf 2017).

        Returns:
            The logits [B, P, V] float32; P is S for all positions.
        """
        if positions is None:
            shape, hidden = ops.shape(hidden)[:2], ops.reshape(hidden, (-1, hidden.shape[-1]))
        else:
            shape, hidden = ops.shape(positions), take_positions(hidden, positions)
        x = activation_norm(
            self.dense(hidden),
            self.dense.bias,
            self.layer_norm.gamma,
            self.layer_norm.beta,
            activation=self.activation,
            epsilon=self.layer_norm.epsilon,
        )  # [B * P, H]
        table = ops.cast(word_embeddings, self.compute_dtype)
        logits = biased_logits(tied_product(x, table), self.output_bias)
        return ops.reshape(logits, (*shape, self.vocab_size))


def linear_head(units: int, initializer_range: float, name: str) -> keras.layers.Dense:
    """Makes a Dense whose logits are float32 in every precision.

    Args:
        units: logits a row.
        initializer_range: standard deviation of the truncated normal the kernel starts from.
        name: the layer's name.

    Returns:
        The layer, not built.
    """
    return keras.layers.Dense(
        units,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=initializer_range),
        name=name,
        dtype="float32",
    )
