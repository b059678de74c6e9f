"""Self-attention and the Transformer block."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert.models.layers import (
    ACTIVATIONS,
    BiasAndNorm,
    Config,
    ConfiguredLayer,
    Dropout,
    DroppingLayer,
    Hook,
    LayerNorm,
    SplitDense,
    chain,
    drop,
    layer_norm,
    with_bias,
)

# The value that Google's released code adds to the scores of padding.
MASKED_SCORE = -10000.0


# `attend_with(attend)` makes `SelfAttention` compute attention with `attend` during the block, as a
# fused operation. `attend(heads, input_mask, example_ids, scale, causal, drop_key=, rate=)` returns
# dropout(softmax(scale · QKᵀ + mask))V, [B, S, N, D], or None to have it computed as without
# `attend`. `heads` are query, key and value, each [B, S, N, D]; `input_mask` and `example_ids` are
# those of an `AttendingLayer`; `scale` is a float; `causal` is whether later tokens are masked;
# `drop_key` and `rate` are those of `drop`, and absent without dropout.
_attend = Hook("attend")
attend_with = _attend.use


def key_mask(input_mask: Any) -> Any:
    """Maps the input mask [B, S] to [B, 1, 1, S]: 0 for tokens, -10000 for padding.

    The masks in this file are float32, and are added to the attention scores [B, N, S, S].
    """
    # LiteRT, in which a model can be exported, has no built-in operator for x[:, None].
    padding = ops.expand_dims(1.0 - ops.cast(input_mask, "float32"), (1, 2))
    return padding * MASKED_SCORE


def example_mask(example_ids: Any) -> Any:
    """Maps example ids [B, S] to a mask [B, 1, S, S], queries by keys: -10000 between examples.

    Within an example, the mask is 0. Padding (id 0) counts as one example, so only padding attends
    to padding.
    """
    same = example_ids[:, :, None] == example_ids[:, None, :]
    return (1.0 - ops.cast(same, "float32"))[:, None] * MASKED_SCORE


def causal_mask(length: Any) -> Any:
    """Returns a mask [S, S], queries by keys: -10000 for keys after the query, else 0."""
    position = ops.arange(length)
    return ops.cast(position[None, :] > position[:, None], "float32") * MASKED_SCORE


@chain
def split_heads(
    product: Any, bias: Any, *, heads: int, scale: float = 1.0, transposed: bool = False
) -> Any:
    """Splits (product + bias) · scale into heads: [B, S, H] -> [B, N, S, D].

    `bias` [H] is None if `product` [B, S, H] contains it. With `transposed`, the result is
    [B, N, D, S].
    """
    x = ops.cast(with_bias(product, bias) * scale, product.dtype)
    batch, length, width = ops.shape(x)
    x = ops.reshape(x, (batch, length, heads, width // heads))
    return ops.transpose(x, (0, 2, 3, 1) if transposed else (0, 2, 1, 3))


@chain
def biased(product: Any, bias: Any) -> Any:
    """Computes product + bias in float32; returns [B, S, H] in the dtype of `product`.

    `bias` [H] is None if `product` contains it.
    """
    return ops.cast(with_bias(product, bias), product.dtype)


@chain
def attention_probabilities(
    scores: Any,
    input_mask: Any,
    example_ids: Any,
    drop_key: Any,
    *,
    rate: float,
    causal: bool = False,
) -> Any:
    """Computes softmax(scores + mask) in float32, followed by dropout: [B, N, S, S].

    The scores are [B, N, S, S]; the result has their dtype. `input_mask` and `example_ids` are
    those of an `AttendingLayer`. `drop_key` is [B] int32 from `Dropout.key`, or None for no
    dropout. With `causal`, later tokens are masked.
    """
    # Computed within the chain, so that a compiler need not store the [B, 1, S, S] mask.
    mask = key_mask(input_mask) if example_ids is None else example_mask(example_ids)
    if causal:
        mask = mask + causal_mask(ops.shape(scores)[-1])
    x = ops.softmax(ops.cast(scores, "float32") + mask, axis=-1)
    return ops.cast(drop(x, drop_key, rate), scores.dtype)


@chain
def merge_heads(context: Any) -> Any:
    """Concatenates the heads: [B, N, S, D] -> [B, S, H]."""
    batch, heads, length, width = ops.shape(context)
    return ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (batch, length, heads * width))


class AttendingLayer(DroppingLayer):
    """Base class of layers that map hidden states to hidden states.

        call(hidden [B, S, H], input_mask [B, S], dropout_seed [B], example_ids [B, S]) -> [B, S, H]

    All inputs after `hidden` are int32. `input_mask` is 1 for tokens and 0 for padding.
    `dropout_seed` is None outside training. `example_ids` are 1, 2, ... for the examples of a row
    and 0 for padding, or None if each row is one example. With `only_probabilities`, some layers
    return the attention probabilities [B, N, S, S] instead.
    """

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the hidden states."""
        return tuple(input_shape)

    def compute_output_spec(
        self, hidden: Any, *inputs: Any, only_probabilities: bool = False
    ) -> keras.KerasTensor:
        """Returns the symbolic output of `call`."""
        batch, length, width = hidden.shape
        shape = (batch, length, width)
        if only_probabilities:
            shape = (batch, self.config.num_attention_heads, length, length)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_bert")
class SelfAttention(AttendingLayer):
    """Computes softmax(QKᵀ/√D + mask)V for each head; has one dropout site."""

    def __init__(self, config: Config, dropout_site: int = 0, **kwargs: Any):
        super().__init__(config, dropout_site, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.query, self.key, self.value = (
            SplitDense.of(config.hidden_size, config.initializer_range, name, dtype)
            for name in ("query", "key", "value")
        )
        self.dropout = Dropout(config.attention_probs_dropout_prob, dropout_site, dtype=dtype)

    def build(self, input_shape: tuple) -> None:
        """Creates the query, key and value kernels [H, H] and biases [H]."""
        for projection in (self.query, self.key, self.value):
            projection.build(input_shape)

    def call(
        self,
        hidden: Any,
        input_mask: Any,
        dropout_seed: Any = None,
        example_ids: Any = None,
        only_probabilities: bool = False,
    ) -> Any:
        """Computes the attention of every token to the tokens that are not masked."""
        # The queries are scaled, with S·H multiplications, rather than the scores, with N·S·S.
        scale = 1.0 / math.sqrt(self.config.hidden_size // self.config.num_attention_heads)
        drop_key, causal = self.dropout.key(dropout_seed), self.config.is_decoder
        attend = None if only_probabilities else _attend.get()
        if attend:
            dropout = {}
            if drop_key is not None and self.dropout.rate > 0.0:
                dropout = {"drop_key": drop_key, "rate": self.dropout.rate}
            projections = (self.query, self.key, self.value)
            heads = [self._side_by_side(projection, hidden) for projection in projections]
            context = attend(heads, input_mask, example_ids, scale, causal, **dropout)
            if context is not None:
                return ops.reshape(context, ops.shape(hidden))
        query = self._heads(self.query, hidden, scale=scale)
        key = self._heads(self.key, hidden, transposed=True)  # [B, N, D, S]
        value = None if only_probabilities else self._heads(self.value, hidden)
        probabilities = attention_probabilities(
            ops.matmul(query, key),  # [B, N, S, S]
            input_mask,
            example_ids,
            drop_key,
            rate=self.dropout.rate,
            causal=causal,
        )
        return probabilities if value is None else merge_heads(ops.matmul(probabilities, value))

    def _side_by_side(self, projection: SplitDense, hidden: Any) -> Any:
        """Projects [B, S, H] to [B, S, N, D]."""
        x = biased(*projection.product_and_bias(hidden))
        batch, length, width = ops.shape(x)
        heads = self.config.num_attention_heads
        return ops.reshape(x, (batch, length, heads, width // heads))

    def _heads(self, projection: SplitDense, hidden: Any, **settings: Any) -> Any:
        """Projects [B, S, H] to [B, N, S, D]."""
        product, bias = projection.product_and_bias(hidden)
        return split_heads(product, bias, heads=self.config.num_attention_heads, **settings)


# --- Transformer block ---


@chain
def residual_norm(
    product: Any, x: Any, weights: BiasAndNorm, drop_key: Any, *, rate: float, epsilon: float
) -> Any:
    """Computes LN(x + dropout(product + bias)) in float32; returns [B, S, H] in the dtype of x."""
    y = drop(with_bias(product, weights.bias), drop_key, rate)
    residual = ops.cast(x, "float32") + y
    return ops.cast(layer_norm(residual, weights.gamma, weights.beta, epsilon), x.dtype)


@chain
def biased_activation(product: Any, bias: Any, *, activation: Callable[[Any], Any]) -> Any:
    """Computes act(product + bias) in float32; returns it in the dtype of `product`."""
    return ops.cast(activation(with_bias(product, bias)), product.dtype)


@keras.saving.register_keras_serializable(package="keras_bert")
class ResidualOutput(DroppingLayer):
    """Computes the output of a sublayer, LN(x + dropout(dense(y))), from its input x.

    y is the result of the sublayer's attention heads or of its intermediate layer.
    """

    def __init__(self, config: Config, dropout_site: int = 0, **kwargs: Any):
        super().__init__(config, dropout_site, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.dense = SplitDense.of(config.hidden_size, config.initializer_range, "dense", dtype)
        self.dropout = Dropout(config.hidden_dropout_prob, dropout_site, dtype=dtype)
        self.layer_norm = LayerNorm(config.layer_norm_eps, name="LayerNorm", dtype=dtype)

    def build(self, input_shape: tuple) -> None:
        """Creates the kernel [width of y, H], its bias and the LayerNorm."""
        self.dense.build(input_shape)
        self.layer_norm.build(self.compute_output_shape(input_shape))

    def call(self, y: Any, x: Any, dropout_seed: Any = None) -> Any:
        """Computes the output [B, S, H] from y, [B, S, any width], and x, [B, S, H]."""
        product, bias = self.dense.product_and_bias(y)
        return residual_norm(
            product,
            x,
            BiasAndNorm(bias, self.layer_norm.gamma, self.layer_norm.beta),
            self.dropout.key(dropout_seed),
            rate=self.dropout.rate,
            epsilon=self.layer_norm.epsilon,
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape [B, S, H]."""
        return (*input_shape[:-1], self.config.hidden_size)


@keras.saving.register_keras_serializable(package="keras_bert")
class Attention(AttendingLayer):
    """Self-attention, projection, residual connection and LayerNorm; has two dropout sites."""

    def __init__(self, config: Config, dropout_site: int = 0, **kwargs: Any):
        super().__init__(config, dropout_site, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.self_attention = SelfAttention(config, dropout_site, name="self", dtype=dtype)
        self.residual_output = ResidualOutput(config, dropout_site + 1, name="output", dtype=dtype)

    def build(self, input_shape: tuple) -> None:
        """Creates the sublayer's variables."""
        self.self_attention.build(input_shape)
        self.residual_output.build(input_shape)

    def call(
        self, hidden: Any, input_mask: Any, dropout_seed: Any = None, example_ids: Any = None
    ) -> Any:
        """Applies the attention sublayer; see `AttendingLayer`."""
        context = self.self_attention(hidden, input_mask, dropout_seed, example_ids)
        return self.residual_output(context, hidden, dropout_seed)


@keras.saving.register_keras_serializable(package="keras_bert")
class Intermediate(ConfiguredLayer):
    """The first, wide layer of the feed-forward sublayer: act(dense(x))."""

    def __init__(self, config: Config, **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        width = config.intermediate_size
        self.dense = SplitDense.of(width, config.initializer_range, "dense", dtype)
        self.activation = ACTIVATIONS[config.hidden_act]

    def build(self, input_shape: tuple) -> None:
        """Creates the kernel and bias."""
        self.dense.build(input_shape)

    def call(self, hidden: Any) -> Any:
        """Maps [B, S, H] to [B, S, intermediate_size]."""
        product, bias = self.dense.product_and_bias(hidden)
        return biased_activation(product, bias, activation=self.activation)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape [B, S, intermediate_size]."""
        return (*input_shape[:-1], self.config.intermediate_size)


@keras.saving.register_keras_serializable(package="keras_bert")
class TransformerBlock(AttendingLayer):
    """One layer of the encoder, with three dropout sites."""

    DROPOUT_SITES = 3

    def __init__(self, config: Config, dropout_site: int = 0, **kwargs: Any):
        super().__init__(config, dropout_site, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.attention = Attention(config, dropout_site, name="attention", dtype=dtype)
        self.intermediate = Intermediate(config, name="intermediate", dtype=dtype)
        self.residual_output = ResidualOutput(config, dropout_site + 2, name="output", dtype=dtype)

    @property
    def dense_layers(self) -> list[SplitDense]:
        """The six dense layers of the block."""
        attention = self.attention.self_attention
        return [
            attention.query,
            attention.key,
            attention.value,
            self.attention.residual_output.dense,
            self.intermediate.dense,
            self.residual_output.dense,
        ]

    def build(self, input_shape: tuple) -> None:
        """Creates the block's variables."""
        self.attention.build(input_shape)
        self.intermediate.build(input_shape)
        self.residual_output.build(self.intermediate.compute_output_shape(input_shape))

    def call(
        self,
        hidden: Any,
        input_mask: Any,
        dropout_seed: Any = None,
        example_ids: Any = None,
        only_probabilities: bool = False,
    ) -> Any:
        """Applies the attention and feed-forward sublayers; see `AttendingLayer`."""
        inputs = (input_mask, dropout_seed, example_ids)
        if only_probabilities:
            return self.attention.self_attention(hidden, *inputs, only_probabilities=True)
        attended = self.attention(hidden, *inputs)
        return self.residual_output(self.intermediate(attended), attended, dropout_seed)
