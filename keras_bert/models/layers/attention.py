"""Multi-head self-attention (Vaswani et al. 2017), without the output projection.

In: hidden states [B, S, H], the input mask [B, S] and, where a row holds several examples, their
numbers [B, S]. Out: the heads' contexts side by side, [B, S, H]. Causal attention, which a piece of
a left-to-right model does, sees that piece and those before it.

Where no probability is dropped, a backend may do all of it as one operation (`attend_with`).
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_bert.models.layers.chain import chain
from keras_bert.models.layers.dense_product import DenseProduct
from keras_bert.models.layers.dropout import Dropout, drop

# What Google's released code adds to the scores of padding.
_MASKED_SCORE = -10000.0

_attend: contextvars.ContextVar[Callable[..., Any] | None] = contextvars.ContextVar(
    "attend", default=None
)


@contextlib.contextmanager
def attend_with(attend: Callable[..., Any]) -> Iterator[None]:
    """Sends attention that drops no probability through one operation in the block.

    Args:
        attend: ((query, key, value), each [B, S, N, D]; input_mask, example_ids: [B, S] or None;
            scale; causal) -> softmax(scale · QKᵀ + mask)V, [B, S, N, D].
    """
    token = _attend.set(attend)
    try:
        yield
    finally:
        _attend.reset(token)


def key_mask(input_mask: Any) -> Any:
    """Returns what to add to attention scores: 0 for real keys, -10000 for padding.

    Args:
        input_mask: [B, S] int32, 1 for a real piece, 0 for padding.

    Returns:
        [B, 1, 1, S] float32; it broadcasts over heads and queries.
    """
    return (1.0 - ops.cast(input_mask, "float32"))[:, None, None, :] * _MASKED_SCORE


@chain
def split_heads(
    product: Any, bias: Any, *, heads: int, scale: float = 1.0, transposed: bool = False
) -> Any:
    """Returns (product + bias) · scale, cut into heads: [B, S, H] -> [B, N, S, D].

    Args:
        product: [B, S, H].
        bias: [H].
        heads: N.
        scale: factor.
        transposed: return [B, N, D, S] instead.

    Returns:
        [B, N, S, D] or [B, N, D, S], in the type of the product.
    """
    x = ops.cast((ops.cast(product, "float32") + bias) * scale, product.dtype)
    batch, length, width = ops.shape(x)
    x = ops.reshape(x, (batch, length, heads, width // heads))
    return ops.transpose(x, (0, 2, 3, 1) if transposed else (0, 2, 1, 3))


def example_mask(example_ids: Any) -> Any:
    """Returns what to add to attention scores: 0 within an example, -10000 elsewhere.

    Padding counts as an example: nothing but padding attends to it.

    Args:
        example_ids: [B, S] int32, 1 up for the examples of a row, 0 for padding.

    Returns:
        [B, 1, S, S] float32; it broadcasts over heads.
    """
    same = example_ids[:, :, None] == example_ids[:, None, :]
    return (1.0 - ops.cast(same, "float32"))[:, None] * _MASKED_SCORE


def causal_mask(length: Any) -> Any:
    """Returns what to add to attention scores: 0 up to the piece itself, -10000 for later ones.

    Args:
        length: S.

    Returns:
        [S, S] float32, queries by keys; it broadcasts over rows and heads.
    """
    place = ops.arange(length)
    return ops.cast(place[None, :] > place[:, None], "float32") * _MASKED_SCORE


@chain
def biased(product: Any, bias: Any) -> Any:
    """Adds the bias in float32.

    Args:
        product: [..., H].
        bias: [H].

    Returns:
        [..., H] in the type of the product.
    """
    return ops.cast(ops.cast(product, "float32") + bias, product.dtype)


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
    """Returns softmax(scores + mask) after dropout, computed in float32.

    Args:
        scores: [B, N, S, S].
        input_mask: [B, S] int32.
        example_ids: [B, S] int32, or None where a row is one example.
        drop_key: [B] int32, or None for no dropout.
        rate: probability of dropping a probability.
        causal: whether a piece attends to none after it.

    Returns:
        [B, N, S, S] in the type of the scores.
    """
    # Made here, inside the chain: a compiler then never writes the [B, 1, S, S] down.
    mask = key_mask(input_mask) if example_ids is None else example_mask(example_ids)
    if causal:
        mask = mask + causal_mask(ops.shape(scores)[-1])
    x = ops.softmax(ops.cast(scores, "float32") + mask, axis=-1)
    return ops.cast(drop(x, drop_key, rate), scores.dtype)


@chain
def merge_heads(context: Any) -> Any:
    """Puts the heads side by side.

    Args:
        context: [B, N, S, D].

    Returns:
        [B, S, H] in the type of the context.
    """
    batch, heads, length, width = ops.shape(context)
    return ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (batch, length, heads * width))


class SelfAttention(keras.layers.Layer):
    """Computes softmax(QKᵀ/√D + mask)V for each head.

    Args:
        hidden_size: width in and out, H.
        num_attention_heads: heads, N; each is D = H / N wide.
        initializer_range: standard deviation of the truncated normal the kernels start from.
        dropout_rate: probability of dropping an attention probability.
        dropout_site: number of the dropout place.
        causal: whether a piece attends to none after it.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        initializer_range: float,
        dropout_rate: float,
        dropout_site: int,
        causal: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.initializer_range = initializer_range
        self.causal = causal
        self.query = self._projection("query")
        self.key = self._projection("key")
        self.value = self._projection("value")
        self.dropout = Dropout(dropout_rate, dropout_site, dtype=self.dtype_policy.name)

    def _projection(self, name: str) -> DenseProduct:
        return DenseProduct(
            self.hidden_size, self.initializer_range, name=name, dtype=self.dtype_policy.name
        )

    def build(self, hidden_shape: tuple) -> None:
        """Makes the query, key and value kernels [H, H] and biases [H]."""
        for projection in (self.query, self.key, self.value):
            projection.build(hidden_shape)

    def call(
        self, hidden: Any, input_mask: Any, dropout_seed: Any = None, example_ids: Any = None
    ) -> Any:
        """Attends from every piece to every real piece, of its own example if rows hold several.

        Causal attention leaves out the pieces after it.

        Args:
            hidden: [B, S, H].
            input_mask: [B, S] int32, 1 for a real piece, 0 for padding.
            dropout_seed: [B] int32, or None outside training.
            example_ids: [B, S] int32, 1 up for the examples of a row, 0 for padding; None where a
                row is one example.

        Returns:
            The contexts [B, S, H].
        """
        # Scaling the queries costs S·H products where scaling the scores costs N·S·S.
        scale = 1.0 / math.sqrt(self.hidden_size // self.num_attention_heads)
        drop_key = self.dropout.key(dropout_seed)
        attend = _attend.get()
        if attend and (drop_key is None or self.dropout.rate == 0.0):
            projections = (self.query, self.key, self.value)
            heads = [self._side_by_side(projection, hidden) for projection in projections]
            context = attend(heads, input_mask, example_ids, scale, self.causal)
            return ops.reshape(context, ops.shape(hidden))
        query = self._heads(self.query, hidden, scale=scale)
        key = self._heads(self.key, hidden, transposed=True)  # [B, N, D, S]
        value = self._heads(self.value, hidden)
        scores = ops.matmul(query, key)  # [B, N, S, S]
        probabilities = attention_probabilities(
            scores,
            input_mask,
            example_ids,
            drop_key,
            rate=self.dropout.rate,
            causal=self.causal,
        )
        return merge_heads(ops.matmul(probabilities, value))

    def _side_by_side(self, projection: DenseProduct, hidden: Any) -> Any:
        """Projects [B, S, H] to [B, S, N, D]."""
        x = biased(projection(hidden), projection.bias)
        batch, length, width = ops.shape(x)
        heads = self.num_attention_heads
        return ops.reshape(x, (batch, length, heads, width // heads))

    def _heads(self, projection: DenseProduct, hidden: Any, **how: Any) -> Any:
        """Projects [B, S, H] to [B, N, S, D]."""
        product = projection(hidden)
        return split_heads(product, projection.bias, heads=self.num_attention_heads, **how)
