"""Defines the post-LN transformer block: attention and feed-forward sublayers.

Each sublayer computes LN(x + dropout(dense(...))). Layer names are nested as in Google's
checkpoints: `attention/self/{query,key,value}`, `attention/output/{dense,LayerNorm}`,
`intermediate/dense`, `output/{dense,LayerNorm}`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.models.layers.activations import ACTIVATIONS
from keras_bert.models.layers.attention import AttendingLayer, SelfAttention
from keras_bert.models.layers.chain import chain
from keras_bert.models.layers.configured import ConfiguredLayer
from keras_bert.models.layers.dense import SplitDense, with_bias
from keras_bert.models.layers.dropout import Dropout, drop
from keras_bert.models.layers.layer_norm import BiasAndNorm, LayerNorm, layer_norm


@chain
def residual_norm(
    product: Any, x: Any, weights: BiasAndNorm, drop_key: Any, *, rate: float, epsilon: float
) -> Any:
    """Computes LN(x + dropout(product + bias)) in float32; returns [B, S, H] in the dtype of x.

    `drop_key` is [B] int32 from `Dropout.key`, or None for no dropout.
    """
    y = drop(with_bias(product, weights.bias), drop_key, rate)
    residual = ops.cast(x, "float32") + y
    return ops.cast(layer_norm(residual, weights.gamma, weights.beta, epsilon), x.dtype)


@chain
def biased_activation(product: Any, bias: Any, *, activation: Callable[[Any], Any]) -> Any:
    """Computes act(product + bias) in float32; returns it in the dtype of `product`.

    `bias` is None if `product` contains it.
    """
    return ops.cast(activation(with_bias(product, bias)), product.dtype)


@keras.saving.register_keras_serializable(package="keras_bert")
class ResidualOutput(ConfiguredLayer):
    """Computes the output of a sublayer, LN(x + dropout(dense(y))), from its input x.

    y is the result of the sublayer's attention heads or of its intermediate layer. `dropout_site`
    is the number of this layer's dropout site (dropout.py).
    """

    def __init__(
        self, config: BertConfig | Mapping[str, Any], dropout_site: int = 0, **kwargs: Any
    ):
        super().__init__(config, **kwargs)
        self.dropout_site = dropout_site
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

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "dropout_site": self.dropout_site}


@keras.saving.register_keras_serializable(package="keras_bert")
class Attention(AttendingLayer):
    """Self-attention, projection, residual connection and LayerNorm; has two dropout sites."""

    def __init__(
        self, config: BertConfig | Mapping[str, Any], dropout_site: int = 0, **kwargs: Any
    ):
        super().__init__(config, dropout_site, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.self_attention = SelfAttention(config, dropout_site, name="self", dtype=dtype)
        self.residual_output = ResidualOutput(config, dropout_site + 1, name="output", dtype=dtype)

    def build(self, input_shape: tuple) -> None:
        """Creates the sublayer's variables."""
        self.self_attention.build(input_shape)
        self.residual_output.build(input_shape)

    def call(
        self,
        hidden: Any,
        input_mask: Any,
        dropout_seed: Any = None,
        example_ids: Any = None,
        return_attention_probabilities: bool = False,
    ) -> Any:
        """Applies the attention sublayer; see `AttendingLayer`."""
        context = self.self_attention(
            hidden,
            input_mask,
            dropout_seed,
            example_ids,
            return_attention_probabilities=return_attention_probabilities,
        )
        if return_attention_probabilities:
            context, probabilities = context
            return self.residual_output(context, hidden, dropout_seed), probabilities
        return self.residual_output(context, hidden, dropout_seed)


@keras.saving.register_keras_serializable(package="keras_bert")
class Intermediate(ConfiguredLayer):
    """The first, wide layer of the feed-forward sublayer: act(dense(x))."""

    def __init__(self, config: BertConfig | Mapping[str, Any], **kwargs: Any):
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

    def __init__(
        self, config: BertConfig | Mapping[str, Any], dropout_site: int = 0, **kwargs: Any
    ):
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
        return_attention_probabilities: bool = False,
    ) -> Any:
        """Applies the attention and feed-forward sublayers; see `AttendingLayer`."""
        attended = self.attention(
            hidden,
            input_mask,
            dropout_seed,
            example_ids,
            return_attention_probabilities=return_attention_probabilities,
        )
        if return_attention_probabilities:
            attended, probabilities = attended
            return self._feed_forward(attended, dropout_seed), probabilities
        return self._feed_forward(attended, dropout_seed)

    def _feed_forward(self, attended: Any, dropout_seed: Any) -> Any:
        return self.residual_output(self.intermediate(attended), attended, dropout_seed)
