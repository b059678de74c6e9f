"""Defines the heads of the models: the pooler, the masked-LM head and linear heads."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.models.layers.activations import ACTIVATIONS
from keras_bert.models.layers.chain import chain
from keras_bert.models.layers.configured import ConfiguredLayer
from keras_bert.models.layers.dense import SplitDense, with_bias
from keras_bert.models.layers.layer_norm import BiasAndNorm, LayerNorm, layer_norm


@chain
def activation_norm(
    product: Any, weights: BiasAndNorm, *, activation: Callable[[Any], Any], epsilon: float
) -> Any:
    """Computes LN(act(product + bias)) in float32; returns [..., H] in the dtype of `product`.

    `activation` is an element-wise function.
    """
    x = activation(with_bias(product, weights.bias))
    return ops.cast(layer_norm(x, weights.gamma, weights.beta, epsilon), product.dtype)


@chain
def biased_logits(product: Any, bias: Any) -> Any:
    """Adds the bias [V] to the product [..., V or more]; returns float32 [..., V]."""
    size = bias.shape[0]
    if product.shape[-1] > size:  # The table has padding.
        product = product[..., :size]
    return ops.cast(product, "float32") + bias


@ops.custom_gradient
def tied_product(x: Any, table: Any) -> Any:
    """Computes x·tableᵀ, [B * P, H] and [V, H] -> [B * P, V], with a custom gradient.

    The default gradient copies the transposed table, which takes longer than the product.
    """

    def gradient(*given: Any, upstream: Any = None) -> tuple[Any, Any]:
        if upstream is None:
            (upstream,) = given
        return ops.matmul(upstream, table), ops.matmul(ops.transpose(upstream), x)

    return ops.matmul(x, ops.transpose(table)), gradient


def take_positions(hidden: Any, positions: Any) -> Any:
    """Gathers the hidden states [B, S, H] at the positions [B, P] of each row to [B * P, H]."""
    batch, length, width = ops.shape(hidden)
    if keras.config.backend() == "jax":
        # The gradient of a product with one-hot rows is a product too. On GPUs, that of a gather
        # adds one row after the other, in no fixed order.
        one_hot = ops.cast(positions[:, :, None] == ops.arange(length), hidden.dtype)
        return ops.reshape(ops.matmul(one_hot, hidden), (-1, width))
    rows = ops.cast(positions, "int32") + ops.arange(batch, dtype="int32")[:, None] * length
    return ops.take(ops.reshape(hidden, (-1, width)), ops.reshape(rows, (-1,)), axis=0)


@keras.saving.register_keras_serializable(package="keras_bert")
class Pooler(ConfiguredLayer):
    """Computes tanh(W h + b), where h is the hidden state of an example's first token."""

    def __init__(self, config: BertConfig | Mapping[str, Any], **kwargs: Any):
        super().__init__(config, **kwargs)
        self.dense = keras.layers.Dense(
            self.config.hidden_size,
            kernel_initializer=keras.initializers.TruncatedNormal(
                stddev=self.config.initializer_range
            ),
            name="dense",
            dtype=self.dtype_policy,
        )

    def build(self, hidden_shape: tuple) -> None:
        """Creates the kernel [H, H] and bias [H]."""
        self.dense.build((hidden_shape[0], hidden_shape[-1]))

    def call(self, hidden: Any, positions: Any = None) -> Any:
        """Pools the hidden states [B, S, H] to [B, H], or to [B, K, H] with positions.

        `positions` [B, K] int32 are the first positions of the examples in each row; None if each
        row is one example.
        """
        if positions is None:
            return ops.tanh(self.dense(hidden[:, 0]))
        pooled = ops.tanh(self.dense(take_positions(hidden, positions)))
        return ops.reshape(pooled, (*ops.shape(positions), pooled.shape[-1]))

    def compute_output_shape(
        self, hidden_shape: tuple, positions_shape: tuple | None = None
    ) -> tuple:
        """Returns the shape [B, H], or [B, K, H] with positions."""
        return (*(positions_shape or hidden_shape[:1]), self.config.hidden_size)


@keras.saving.register_keras_serializable(package="keras_bert")
class MaskedLMHead(ConfiguredLayer):
    """Scores every token of the vocabulary at the masked positions.

    The product with the word embeddings [V, H] is the most expensive one of the model. Therefore,
    the hidden states at the masked positions, about 20 of 128, are gathered first. In a
    left-to-right model, the head scores the tokens at every position.
    """

    def __init__(self, config: BertConfig | Mapping[str, Any], **kwargs: Any):
        super().__init__(config, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.dense = SplitDense.of(config.hidden_size, config.initializer_range, "dense", dtype)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.layer_norm = LayerNorm(config.layer_norm_eps, name="LayerNorm", dtype=dtype)

    def build(self, hidden_shape: tuple) -> None:
        """Creates the dense layer, the LayerNorm and the output bias [V], but no output kernel."""
        self.dense.build((None, hidden_shape[-1]))
        self.layer_norm.build((None, hidden_shape[-1]))
        self.output_bias = self.add_weight(
            (self.config.vocab_size,), initializer="zeros", name="output_bias", autocast=False
        )

    def call(self, hidden: Any, positions: Any, word_embeddings: Any) -> Any:
        """Returns the logits [B, P, V], float32, of the hidden states [B, S, H].

        `positions` [B, P] int32 are below S; None for all positions (P is S). `word_embeddings` is
        the encoder's table [V, H] (Press & Wolf 2017).
        """
        if positions is None:
            shape, hidden = ops.shape(hidden)[:2], ops.reshape(hidden, (-1, hidden.shape[-1]))
        else:
            shape, hidden = ops.shape(positions), take_positions(hidden, positions)
        product, bias = self.dense.product_and_bias(hidden)
        x = activation_norm(
            product,
            BiasAndNorm(bias, self.layer_norm.gamma, self.layer_norm.beta),
            activation=self.activation,
            epsilon=self.layer_norm.epsilon,
        )  # [B * P, H]
        table = ops.cast(word_embeddings, self.compute_dtype)
        if keras.config.backend() == "jax":
            # GPUs multiply matrices fastest whose sizes are multiples of 64.
            table = ops.pad(table, ((0, -self.config.vocab_size % 64), (0, 0)))
        logits = biased_logits(tied_product(x, table), self.output_bias)
        return ops.reshape(logits, (*shape, self.config.vocab_size))

    def compute_output_shape(
        self, hidden_shape: tuple, positions_shape: tuple | None = None
    ) -> tuple:
        """Returns the shape [B, P, V]; P is S without positions."""
        return (*(positions_shape or hidden_shape[:2]), self.config.vocab_size)

    def compute_output_spec(self, hidden: Any, positions: Any, word_embeddings: Any) -> Any:
        """Returns the symbolic logits."""
        positions_shape = None if positions is None else positions.shape
        shape = self.compute_output_shape(hidden.shape, positions_shape)
        return keras.KerasTensor(shape, dtype="float32")


def linear_head(
    units: int, initializer_range: float, name: str, dtype: Any = None
) -> keras.layers.Dense:
    """Creates an unbuilt Dense layer whose logits are float32 for every compute dtype.

    `dtype`, the model's dtype policy, is used only if it is a DTypePolicyMap, as in a quantized
    model. The kernel is initialized with a truncated normal of standard deviation
    `initializer_range`.
    """
    return keras.layers.Dense(
        units,
        kernel_initializer=keras.initializers.TruncatedNormal(stddev=initializer_range),
        name=name,
        dtype=dtype if isinstance(dtype, keras.dtype_policies.DTypePolicyMap) else "float32",
    )
