"""Layers of BERT: dense, dropout, LayerNorm, embeddings, and functions that they share."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.random_bits import random_bits, site_key

Config = BertConfig | Mapping[str, Any]  # A mapping is the dict of a BertConfig.


def bert_config(config: Config) -> BertConfig:
    """Converts a dict to a `BertConfig`; returns a `BertConfig` unchanged."""
    return config if isinstance(config, BertConfig) else BertConfig.from_dict(dict(config))


class ConfiguredLayer(keras.layers.Layer):
    """A layer that is configured by a `BertConfig` or its dict."""

    def __init__(self, config: Config, **kwargs: Any):
        super().__init__(**kwargs)
        self.config = bert_config(config)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "config": self.config.to_dict()}


class DroppingLayer(ConfiguredLayer):
    """A layer with one or more dropout sites; the number of the first one is `dropout_site`."""

    def __init__(self, config: Config, dropout_site: int = 0, **kwargs: Any):
        super().__init__(config, **kwargs)
        self.dropout_site = dropout_site

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "dropout_site": self.dropout_site}


def gelu_erf(x: Any) -> Any:
    """Computes the exact GELU, x·Φ(x) (Hendrycks and Gimpel 2016).

    It uses erf because ONNX runtimes lack erfc, which `keras.activations.gelu` uses.
    """
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Any) -> Any:
    """Computes the tanh approximation of GELU, which Google's BERT uses."""
    return 0.5 * x * (1.0 + ops.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": gelu_erf,
    "gelu_new": gelu_tanh,
    "gelu_tanh": gelu_tanh,
    "relu": ops.relu,
}


# --- functions that a training step or an export replaces ---


class Hook:
    """A function that is replaced while a `with` block runs; `get` returns None outside."""

    def __init__(self, name: str):
        self._function: contextvars.ContextVar[Callable[..., Any] | None] = contextvars.ContextVar(
            name, default=None
        )
        self.get = self._function.get

    @contextlib.contextmanager
    def use(self, function: Callable[..., Any]) -> Iterator[None]:
        """Makes `get` return `function` during the block."""
        token = self._function.set(function)
        try:
            yield
        finally:
            self._function.reset(token)


# `compile_chains_with(compiler)` compiles every chain that is called during the block. `compiler`
# takes the function of a chain and returns a faster function with the same arguments and result,
# which the backend can differentiate.
_compiler = Hook("chain_compiler")
compile_chains_with = _compiler.use


def chain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a pure function as a chain; the backward pass may run the function again.

    The function must take tensors, None or NamedTuples of tensors by position and plain settings by
    keyword, read nothing else, and return a tensor.
    """

    @functools.wraps(function)
    def call(*tensors: Any, **settings: Any) -> Any:
        compiler = _compiler.get()
        return (compiler(function) if compiler else function)(*tensors, **settings)

    return call


# `replace_blocks_with(replace)` replaces every block of an encoder during the `with` block, for
# example by a function that computes the block again in the backward pass (Chen et al. 2016,
# sublinear memory cost). `replace` takes a built layer, which takes tensors or None by position and
# returns one tensor. It returns a function with the same arguments, result and gradients.
_replace = Hook("replace_block")
replace_blocks_with = _replace.use


def replaced(block: keras.layers.Layer) -> Callable[..., Any]:
    """Returns the function to call instead of a block: the block, unless it is replaced."""
    replace = _replace.get()
    return replace(block) if replace else block


# During `add_to_sites(offset)`, an int32 tensor is added to the number of each dropout site.
_site_offset = Hook("site_offset")
add_to_sites = _site_offset.use


# `take_rows_with(take)` makes `BertEmbeddings` select rows of its tables with `take(table, ids)`
# during the block.
_take = Hook("take")
take_rows_with = _take.use


def take_rows(table: Any, ids: Any) -> Any:
    """Returns the rows [B, S, H] of `table` [V, H] that `ids` [B, S] int32 select."""
    take = _take.get()
    return take(table, ids) if take else ops.take(table, ids, axis=0)


# During `skip_encoder_weights()`, the embeddings and blocks of encoders get zeros instead of random
# values, which take a second for BERT-base, because a checkpoint will be loaded into them.
_skipped = Hook("skipped_weights")
skip_encoder_weights = functools.partial(_skipped.use, ops.zeros)
_initial_values = Hook("initial_values")


def encoder_weights() -> contextlib.AbstractContextManager:
    """Marks a block in which the weights of an encoder are created that checkpoints contain."""
    return _initial_values.use(_skipped.get())


# --- dense, dropout, LayerNorm ---


@keras.saving.register_keras_serializable(package="keras_bert")
class LazyTruncatedNormal(keras.initializers.Initializer):
    """A truncated normal initializer that draws its seed at the first call.

    The weights of a model then depend only on the order in which its layers are built.
    `keras.initializers.TruncatedNormal` draws its seed in the constructor. `stddev` is the standard
    deviation before the truncation at two standard deviations.
    """

    def __init__(self, stddev: float):
        self.stddev = stddev
        self._initializer: keras.initializers.Initializer | None = None

    def __call__(self, shape: tuple, dtype: Any = None) -> Any:
        """Returns a tensor of random values, the same at each call; or zeros, if they suffice."""
        if self._initializer is None:
            self._initializer = keras.initializers.TruncatedNormal(stddev=self.stddev)
        return (_initial_values.get() or self._initializer)(shape, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {"stddev": self.stddev}


@keras.saving.register_keras_serializable(package="keras_bert")
class SplitDense(keras.layers.Dense):
    """A Dense layer that can return its matrix product without the bias; adds it in float32.

    LoRA and quantization work as in `keras.layers.Dense`.
    """

    @classmethod
    def of(cls, units: int, initializer_range: float, name: str, dtype: Any) -> "SplitDense":
        """Creates a layer with a truncated normal kernel; stddev is `initializer_range`."""
        initializer = LazyTruncatedNormal(initializer_range)
        return cls(units, kernel_initializer=initializer, name=name, dtype=dtype)

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a weight; mixed precision does not cast the bias."""
        if kwargs.get("name") == "bias":
            kwargs["autocast"] = False
        return super().add_weight(*args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns activation(inputs · kernel + bias), [..., units] in the compute dtype."""
        x = with_bias(self._product(inputs), self.bias)
        return self.activation(ops.cast(x, self.compute_dtype))

    def quantized_call(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the same as `call`, with the quantized kernel."""
        return ops.cast(super().quantized_call(*args, **kwargs), self.compute_dtype)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        """Quantizes the kernel; ignores `type_check`, because Keras's check rejects subclasses."""
        super().quantize(mode, type_check=False, config=config)

    def product_and_bias(self, inputs: Any) -> tuple[Any, Any]:
        """Returns the matrix product and the bias, which the caller must add with `with_bias`.

        Does not apply the activation. Must be called within the `call` of a layer with the same
        dtype policy, because Keras casts the kernel to the compute dtype only there.

        Returns:
            The product [..., units] in the compute dtype, and the bias [units]. The bias is None if
            the product already contains it, as in a quantized layer.
        """
        if self.quantization_mode is not None:
            return self(inputs), None
        # TensorFlow sums gradients in the order of their names, so the exact result of training
        # depends on this scope.
        with keras.name_scope(self.name):
            return self._product(inputs), self.bias

    def _product(self, inputs: Any) -> Any:
        if len(inputs.shape) == 2:
            return ops.matmul(inputs, self.kernel)
        *leading, width = ops.shape(inputs)
        # With three dimensions, the product would be computed as a batch of small products.
        product = ops.matmul(ops.reshape(inputs, (-1, width)), self.kernel)
        return ops.reshape(product, (*leading, self.units))


def with_bias(product: Any, bias: Any) -> Any:
    """Returns product + bias in float32; `bias` is None if `product` contains it."""
    x = ops.cast(product, "float32")
    return x if bias is None else x + bias


def drop(inputs: Any, key: Any, rate: float) -> Any:
    """Sets random elements of `inputs` [B, ...] to zero and scales up the others.

    `key` is [B] int32 from `site_key`, or None for no dropout. `rate` is the probability that an
    element becomes zero, in [0, 1).
    """
    if key is None or rate == 0.0:
        return inputs
    shape = ops.shape(inputs)
    least, factor = dropout_bounds(rate)
    bits = random_bits(key, math.prod(shape[1:]))
    return inputs * ops.reshape(ops.cast(bits >= least, inputs.dtype) * factor, shape)


def dropout_bounds(rate: float) -> tuple[int, float]:
    """Returns the least of the `random_bits` with which an element is kept, and its factor."""
    dropped = round(rate * 2**16)  # how many of the 2^16 values drop an element
    return dropped - 2**15, 1.0 / (1.0 - dropped / 2**16)


@keras.saving.register_keras_serializable(package="keras_bert")
class Dropout(keras.layers.Layer):
    """Dropout with a separate seed for each example.

    Layers that apply dropout in a chain do not call this layer. They pass its `rate` and
    the result of `key` to the chain, so that a compiler can fuse dropout with other operations.

    Args:
        rate: the dropout rate, in [0, 1).
        site: the number of the dropout site, unique within the model.
    """

    def __init__(self, rate: float, site: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.site = site
        self.built = True

    def call(self, inputs: Any, dropout_seed: Any = None) -> Any:
        """Applies dropout to inputs [B, ...] with seeds [B] int32; None disables dropout."""
        return drop(inputs, self.key(dropout_seed), self.rate)

    def key(self, dropout_seed: Any) -> Any:
        """Returns the key of each example's mask, [B] int32, for `drop`; None without seeds."""
        if dropout_seed is None:
            return None
        return site_key(dropout_seed, self.site, _site_offset.get())

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the input."""
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "rate": self.rate, "site": self.site}


class BiasAndNorm(NamedTuple):
    """The vectors [H] that a chain applies after a matrix product.

    `bias` is None if the product contains it; `gamma` and `beta` are the weights of a LayerNorm.
    """

    bias: Any
    gamma: Any
    beta: Any


def layer_norm(x: Any, gamma: Any, beta: Any, epsilon: float) -> Any:
    """Normalizes float32 vectors [..., H] to mean 0 and variance 1, then applies gamma and beta."""
    centred = x - ops.mean(x, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    return centred * ops.rsqrt(variance + epsilon) * gamma + beta


@keras.saving.register_keras_serializable(package="keras_bert")
class LayerNorm(keras.layers.Layer):
    """Normalizes each vector to mean 0 and variance 1, then applies `gamma` and `beta`.

    The layers of this package do not call this layer. They pass its `gamma`, `beta` and `epsilon`
    to a chain, so that a compiler can fuse the normalization with other operations.

    Args:
        epsilon: added to the variance; BERT uses 1e-12.
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: tuple) -> None:
        """Creates gamma [H] and beta [H]."""
        width = (input_shape[-1],)
        self.gamma = self.add_weight(width, initializer="ones", name="gamma", autocast=False)
        self.beta = self.add_weight(width, initializer="zeros", name="beta", autocast=False)

    def call(self, inputs: Any) -> Any:
        """Normalizes vectors [..., H] in float32 and returns them in the compute dtype."""
        x = ops.cast(inputs, "float32")
        return ops.cast(layer_norm(x, self.gamma, self.beta, self.epsilon), self.compute_dtype)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape of the input."""
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "epsilon": self.epsilon}


# --- embeddings ---


class Summands(NamedTuple):
    """The embeddings of each token before they are added, in float32.

    `words` is [B, S, H], and `positions` [S, H] or [B, S, H]. The segment embeddings are the rows
    of `segment_table` [type_vocab_size, H] that `segment_ids` [B, S] int32 select.
    """

    words: Any
    positions: Any
    segment_table: Any
    segment_ids: Any


class NormWeights(NamedTuple):
    """The weights of a LayerNorm, [H] each."""

    gamma: Any
    beta: Any


@chain
def sum_norm(
    summands: Summands,
    weights: NormWeights,
    drop_key: Any,
    *,
    rate: float,
    epsilon: float,
    dtype: str,
) -> Any:
    """Computes dropout(LN(words + positions + segments)) in float32: [B, S, H] in `dtype`."""
    words, positions, segment_table, segment_ids = summands
    # A product with one-hot rows has a matrix product as its gradient. The gradient of a gather
    # would add B·S rows, one after the other, to the two rows of the table.
    one_hot = ops.one_hot(segment_ids, segment_table.shape[0], dtype="float32")
    x = words + positions + ops.matmul(one_hot, segment_table)
    x = layer_norm(x, weights.gamma, weights.beta, epsilon)
    return ops.cast(drop(x, drop_key, rate), dtype)


@keras.saving.register_keras_serializable(package="keras_bert")
class BertEmbeddings(DroppingLayer):
    """Adds the three embeddings of each token, and applies LayerNorm and dropout."""

    def __init__(self, config: Config, dropout_site: int = 0, **kwargs: Any):
        super().__init__(config, dropout_site, **kwargs)
        config, dtype = self.config, self.dtype_policy
        self.layer_norm = LayerNorm(config.layer_norm_eps, name="LayerNorm", dtype=dtype)
        self.dropout = Dropout(config.hidden_dropout_prob, dropout_site, dtype=dtype)

    def build(self, input_shape: tuple | None = None) -> None:
        """Creates the three embedding tables and the LayerNorm."""
        config = self.config
        self.word_embeddings = self._table("word_embeddings", config.vocab_size)
        self.position_embeddings = self._table(
            "position_embeddings", config.max_position_embeddings
        )
        self.token_type_embeddings = self._table("token_type_embeddings", config.type_vocab_size)
        self.layer_norm.build((None, None, config.hidden_size))

    def _table(self, name: str, rows: int) -> Any:
        # With autocast, Keras would cast the whole table before the gather.
        return self.add_weight(
            (rows, self.config.hidden_size),
            initializer=LazyTruncatedNormal(self.config.initializer_range),
            name=name,
            autocast=False,
        )

    def call(
        self,
        input_ids: Any,
        segment_ids: Any,
        dropout_seed: Any = None,
        position_ids: Any = None,
    ) -> Any:
        """Returns the hidden states [B, S, H].

        `input_ids`, `segment_ids` and `position_ids` are [B, S] int32; None for `position_ids`
        means 0, 1, 2, ... `dropout_seed` is [B] int32, or None outside training.
        """
        words = take_rows(self.word_embeddings, input_ids)
        positions = self.position_embeddings[: ops.shape(input_ids)[1]]
        if position_ids is not None:
            # A gather is exact. Its gradient adds B·S rows, which is as fast as a product with
            # one-hot rows (measured: 6 ms each at B·S = 4096, H = 768 on two cores).
            positions = take_rows(positions, position_ids)
        return sum_norm(
            Summands(words, positions, self.token_type_embeddings, segment_ids),
            NormWeights(self.layer_norm.gamma, self.layer_norm.beta),
            self.dropout.key(dropout_seed),
            rate=self.dropout.rate,
            epsilon=self.layer_norm.epsilon,
            dtype=self.compute_dtype,
        )

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """Returns the shape [B, S, H]."""
        return (*input_shape, self.config.hidden_size)


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

    def __init__(self, config: Config, **kwargs: Any):
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
