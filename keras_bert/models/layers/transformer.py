"""The post-LN transformer block: attention, then feed-forward, each LN(x + dropout(dense(...))).

In and out: hidden states [B, S, H]. Layer names nest as in Google's checkpoints:
`attention/self/{query,key,value}`, `attention/output/{dense,LayerNorm}`, `intermediate/dense`,
`output/{dense,LayerNorm}`.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert.models.layers.activations import ACTIVATIONS
from keras_bert.models.layers.attention import SelfAttention
from keras_bert.models.layers.chain import chain
from keras_bert.models.layers.dense_product import DenseProduct
from keras_bert.models.layers.dropout import Dropout, drop
from keras_bert.models.layers.layer_norm import LayerNorm, layer_norm


@chain
def residual_norm(
    product: Any,
    bias: Any,
    x: Any,
    gamma: Any,
    beta: Any,
    drop_key: Any,
    *,
    rate: float,
    epsilon: float,
) -> Any:
    """Returns LN(x + dropout(product + bias)), computed in float32.

    Args:
        product: [B, S, H].
        bias: [H].
        x: [B, S, H].
        gamma: [H].
        beta: [H].
        drop_key: [B] int32, or None for no dropout.
        rate: probability of dropping an element of product + bias.
        epsilon: of the LayerNorm.

    Returns:
        [B, S, H] in the type of x.
    """
    y = drop(ops.cast(product, "float32") + bias, drop_key, rate)
    return ops.cast(layer_norm(ops.cast(x, "float32") + y, gamma, beta, epsilon), x.dtype)


@chain
def biased_activation(product: Any, bias: Any, *, activation: Callable[[Any], Any]) -> Any:
    """Returns act(product + bias), computed in float32.

    Args:
        product: [..., width].
        bias: [width].
        activation: element-wise.

    Returns:
        [..., width] in the type of the product.
    """
    return ops.cast(activation(ops.cast(product, "float32") + bias), product.dtype)


class ResidualOutput(keras.layers.Layer):
    """Ends a sublayer: LN(x + dropout(dense(y))).

    Args:
        hidden_size: width of x and of the result, H.
        initializer_range: standard deviation of the truncated normal the kernel starts from.
        layer_norm_eps: epsilon of the LayerNorm.
        dropout_rate: probability of dropping an element of dense(y).
        dropout_site: number of the dropout place.
    """

    def __init__(
        self,
        hidden_size: int,
        initializer_range: float,
        layer_norm_eps: float,
        dropout_rate: float,
        dropout_site: int,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.dense = DenseProduct(
            hidden_size, initializer_range, name="dense", dtype=self.dtype_policy.name
        )
        self.dropout = Dropout(dropout_rate, dropout_site, dtype=self.dtype_policy.name)
        self.layer_norm = LayerNorm(layer_norm_eps, name="LayerNorm", dtype=self.dtype_policy.name)

    def build(self, y_shape: tuple) -> None:
        """Makes the kernel [width of y, H], its bias and the LayerNorm."""
        self.dense.build(y_shape)
        self.layer_norm.build((*y_shape[:-1], self.hidden_size))

    def call(self, y: Any, x: Any, dropout_seed: Any = None) -> Any:
        """Adds what the sublayer computed to what went into it, and normalises.

        Args:
            y: [B, S, any width], what the sublayer computed.
            x: [B, S, H], what went into the sublayer.
            dropout_seed: [B] int32, or None outside training.

        Returns:
            [B, S, H].
        """
        return residual_norm(
            self.dense(y),
            self.dense.bias,
            x,
            self.layer_norm.gamma,
            self.layer_norm.beta,
            self.dropout.key(dropout_seed),
            rate=self.dropout.rate,
            epsilon=self.layer_norm.epsilon,
        )


class Attention(keras.layers.Layer):
    """The attention sublayer: self-attention, projection, residual, LayerNorm.

    Args:
        hidden_size: width in and out, H.
        num_attention_heads: heads, N.
        initializer_range: standard deviation of the truncated normal the kernels start from.
        layer_norm_eps: epsilon of the LayerNorm.
        hidden_dropout_prob: dropout on the projection.
        attention_probs_dropout_prob: dropout on the attention probabilities.
        dropout_site: number of the first of this sublayer's two dropout places.
        causal: whether a piece attends to none after it.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        initializer_range: float,
        layer_norm_eps: float,
        hidden_dropout_prob: float,
        attention_probs_dropout_prob: float,
        dropout_site: int,
        causal: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.self_attention = SelfAttention(
            hidden_size,
            num_attention_heads,
            initializer_range,
            attention_probs_dropout_prob,
            dropout_site,
            causal,
            name="self",
            dtype=self.dtype_policy.name,
        )
        self.residual_output = ResidualOutput(
            hidden_size,
            initializer_range,
            layer_norm_eps,
            hidden_dropout_prob,
            dropout_site + 1,
            name="output",
            dtype=self.dtype_policy.name,
        )

    def build(self, hidden_shape: tuple) -> None:
        """Makes the sublayer's variables."""
        self.self_attention.build(hidden_shape)
        self.residual_output.build(hidden_shape)

    def call(
        self, hidden: Any, input_mask: Any, dropout_seed: Any = None, example_ids: Any = None
    ) -> Any:
        """Attends, projects, adds and normalises.

        Args:
            hidden: [B, S, H].
            input_mask: [B, S] int32, 1 for a real piece, 0 for padding.
            dropout_seed: [B] int32, or None outside training.
            example_ids: [B, S] int32 where rows hold several examples, else None (attention.py).

        Returns:
            The hidden states [B, S, H] after attention.
        """
        context = self.self_attention(hidden, input_mask, dropout_seed, example_ids)
        return self.residual_output(context, hidden, dropout_seed)


class Intermediate(keras.layers.Layer):
    """The wide half of the feed-forward sublayer: act(dense(x)).

    Args:
        intermediate_size: width of the result.
        hidden_act: name of the activation.
        initializer_range: standard deviation of the truncated normal the kernel starts from.
    """

    def __init__(
        self, intermediate_size: int, hidden_act: str, initializer_range: float, **kwargs: Any
    ):
        super().__init__(**kwargs)
        self.dense = DenseProduct(
            intermediate_size, initializer_range, name="dense", dtype=self.dtype_policy.name
        )
        self.activation = ACTIVATIONS[hidden_act]

    def build(self, hidden_shape: tuple) -> None:
        """Makes the kernel and bias."""
        self.dense.build(hidden_shape)

    def call(self, hidden: Any) -> Any:
        """Widens the hidden states.

        Args:
            hidden: [B, S, H].

        Returns:
            [B, S, intermediate_size].
        """
        return biased_activation(self.dense(hidden), self.dense.bias, activation=self.activation)


class TransformerBlock(keras.layers.Layer):
    """One layer of the encoder.

    Args:
        hidden_size: width in and out, H.
        num_attention_heads: heads, N.
        intermediate_size: width of the feed-forward sublayer.
        hidden_act: activation of the feed-forward sublayer.
        initializer_range: standard deviation of the truncated normal the kernels start from.
        layer_norm_eps: epsilon of both LayerNorms.
        hidden_dropout_prob: dropout that ends each sublayer.
        attention_probs_dropout_prob: dropout on the attention probabilities.
        dropout_site: number of the first of this block's three dropout places.
        causal: whether a piece attends to none after it.
    """

    DROPOUT_SITES = 3

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        intermediate_size: int,
        hidden_act: str,
        initializer_range: float,
        layer_norm_eps: float,
        hidden_dropout_prob: float,
        attention_probs_dropout_prob: float,
        dropout_site: int,
        causal: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.attention = Attention(
            hidden_size,
            num_attention_heads,
            initializer_range,
            layer_norm_eps,
            hidden_dropout_prob,
            attention_probs_dropout_prob,
            dropout_site,
            causal,
            name="attention",
            dtype=self.dtype_policy.name,
        )
        self.intermediate = Intermediate(
            intermediate_size,
            hidden_act,
            initializer_range,
            name="intermediate",
            dtype=self.dtype_policy.name,
        )
        self.residual_output = ResidualOutput(
            hidden_size,
            initializer_range,
            layer_norm_eps,
            hidden_dropout_prob,
            dropout_site + 2,
            name="output",
            dtype=self.dtype_policy.name,
        )
        self.intermediate_size = intermediate_size

    def build(self, hidden_shape: tuple) -> None:
        """Makes the block's variables."""
        self.attention.build(hidden_shape)
        self.intermediate.build(hidden_shape)
        self.residual_output.build((*hidden_shape[:-1], self.intermediate_size))

    def call(
        self, hidden: Any, input_mask: Any, dropout_seed: Any = None, example_ids: Any = None
    ) -> Any:
        """Attends, then feeds forward.

        Args:
            hidden: [B, S, H].
            input_mask: [B, S] int32, 1 for a real piece, 0 for padding.
            dropout_seed: [B] int32, or None outside training.
            example_ids: [B, S] int32 where rows hold several examples, else None (attention.py).

        Returns:
            The hidden states [B, S, H] for the next block.
        """
        attended = self.attention(hidden, input_mask, dropout_seed, example_ids)
        return self.residual_output(self.intermediate(attended), attended, dropout_seed)
