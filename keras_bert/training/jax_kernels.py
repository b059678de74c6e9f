"""Kernels for NVIDIA GPUs that replace chains of element-wise operations (Pallas, Triton).

XLA splits a chain with dropout and LayerNorm into several kernels, which exchange float32 values
through memory. These kernels read the inputs of a chain once, and write its result once. The
backward pass reads the inputs again, and computes everything else again, dropout included.

residual_norm      LN(x + dropout(product + bias))
sum_norm           dropout(LN(x)); XLA adds the embeddings x
biased_activation  act(product + bias)
biased             product + bias in the dtype of the product, so that cuBLAS adds the bias
biased_logits      product + bias, and its prediction_sums; XLA computes both passes, but from the
                   16-bit product instead of float32 logits

Shapes: B rows, S tokens, H values of a token (hidden or intermediate size), a
tile is float32 [R, C], C of the values of R tokens.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import PartitionSpec

from keras_bert.models.attention import biased, biased_activation, residual_norm
from keras_bert.models.heads import biased_logits, prediction_sums
from keras_bert.models.layers import (
    BiasAndNorm,
    NormWeights,
    Summands,
    dropout_bounds,
    gelu_erf,
    gelu_tanh,
    sum_norm,
)
from keras_bert.random_bits import random_words

_TOKENS = 4  # R: one token for each warp of a program
_WARPS = 4
_NARROWEST, _WIDEST = 64, 1024  # C
_MOST_SEGMENTS = 4  # rows of the table of segment embeddings
_PROGRAMS = 512  # at least; about four for each of the 132 processors of an H100

Tiles = Sequence[jax.Array]  # all the values of R tokens that a program computes


def kernel_of(
    function: Callable[..., Any], mesh: Any = None, *, interpret: bool = False
) -> Callable[..., jax.Array | None] | None:
    """Returns the kernel that replaces the function of a chain; None if there is none.

    The kernel takes the arguments of the chain, and returns None if it does not support them. With
    a `mesh` of several devices, each device computes its own rows. `interpret` runs the kernel on
    any device, slowly.
    """
    kernels = {
        residual_norm.__wrapped__: _residual_norm,
        sum_norm.__wrapped__: _sum_norm,
        biased_activation.__wrapped__: _biased_activation,
        biased.__wrapped__: _biased,
        biased_logits.__wrapped__: _biased_logits,
        prediction_sums.__wrapped__: _prediction_sums,
    }
    kernel = kernels.get(function)
    return kernel and functools.partial(kernel, mesh=mesh, interpret=interpret)


# --- chains ---


def _residual_norm(
    product: jax.Array,
    x: jax.Array,
    weights: BiasAndNorm,
    drop_key: jax.Array | None,
    *,
    rate: float,
    epsilon: float,
    mesh: Any,
    interpret: bool,
) -> jax.Array | None:
    if weights.bias is None or not _has_tiles(product):
        return None

    def standardize(product: Tiles, x: Tiles, bias: Tiles, factors: Tiles) -> tuple[Tiles, Any]:
        residuals = zip(product, x, bias, factors, strict=True)
        return _standardize([x + (p + b) * k for p, x, b, k in residuals], epsilon)

    def compute(
        factors: Tiles, rows: Sequence[Tiles], weights: Sequence[Tiles]
    ) -> tuple[list, list]:
        bias, gamma, beta = weights
        y, _ = standardize(*rows, bias, factors)
        return [[tile * g + b for tile, g, b in zip(y, gamma, beta, strict=True)]], []

    def differentiate(
        factors: Tiles, rows: Sequence[Tiles], weights: Sequence[Tiles]
    ) -> tuple[list, list]:
        *rows, upstream = rows
        bias, gamma, _ = weights
        y, scale = standardize(*rows, bias, factors)
        to_x, to_gamma = _norm_gradients(upstream, y, scale, gamma)
        to_product = [tile * factor for tile, factor in zip(to_x, factors, strict=True)]
        return [to_product, to_x], [to_product, to_gamma, upstream]

    rate = 0.0 if drop_key is None else rate
    chain = _chain(compute, differentiate, [x.dtype], x.shape[-1], interpret, rate)
    return _on_each_device(chain, mesh)((product, x), tuple(weights), _keys(drop_key, product))


def _sum_norm(
    summands: Summands,
    weights: NormWeights,
    drop_key: jax.Array | None,
    *,
    rate: float,
    epsilon: float,
    dtype: str,
    mesh: Any,
    interpret: bool,
) -> jax.Array | None:
    words, positions, *segments = map(keras.ops.convert_to_tensor, summands)
    segment_table, segment_ids = segments
    if len(segment_table) > _MOST_SEGMENTS or not _has_tiles(words):
        return None
    x = words + positions
    for index, row in enumerate(segment_table):
        x += jnp.where((segment_ids == index)[..., None], row, 0.0)

    def compute(
        factors: Tiles, rows: Sequence[Tiles], weights: Sequence[Tiles]
    ) -> tuple[list, list]:
        y, _ = _standardize(*rows, epsilon)
        results = zip(y, *weights, factors, strict=True)
        return [[(tile * g + b) * k for tile, g, b, k in results]], []

    def differentiate(
        factors: Tiles, rows: Sequence[Tiles], weights: Sequence[Tiles]
    ) -> tuple[list, list]:
        x, upstream = rows
        y, scale = _standardize(x, epsilon)
        upstream = [tile * factor for tile, factor in zip(upstream, factors, strict=True)]
        to_x, to_gamma = _norm_gradients(upstream, y, scale, weights[0])
        return [to_x], [to_gamma, upstream]

    rate = 0.0 if drop_key is None else rate
    chain = _chain(compute, differentiate, [dtype], x.shape[-1], interpret, rate)
    return _on_each_device(chain, mesh)((x,), tuple(weights), _keys(drop_key, words))


def _chain(
    compute: Callable[..., Any],
    differentiate: Callable[..., Any],
    dtypes: Sequence[Any],
    columns: int,
    interpret: bool,
    rate: float = 0.0,
) -> Callable[..., jax.Array]:
    """Makes a chain of the kernels of its result and of its gradients; see `_run`."""
    settings = {"rate": rate, "columns": columns, "interpret": interpret}

    @jax.custom_vjp
    def chain(rows: tuple, weights: tuple, keys: jax.Array) -> jax.Array:
        return _run(compute, rows, weights, keys, dtypes, 0, **settings)[0][0]

    def backward(inputs: tuple, upstream: jax.Array) -> tuple:
        rows, weights, keys = inputs
        dtypes, rows = [each.dtype for each in rows], (*rows, upstream)
        return *_run(differentiate, rows, weights, keys, dtypes, len(weights), **settings), None

    chain.defvjp(lambda *inputs: (chain(*inputs), inputs), backward)
    return chain


def _keys(drop_key: jax.Array | None, rows: jax.Array) -> jax.Array:
    return jnp.zeros(len(rows), "int32") if drop_key is None else drop_key


def _mean(tiles: Tiles) -> jax.Array:
    """Returns the mean [R, 1] over the values of each token."""
    size = sum(tile.shape[1] for tile in tiles)
    return jnp.sum(sum(tiles), axis=1, keepdims=True) / size


def _standardize(x: Tiles, epsilon: float) -> tuple[Tiles, jax.Array]:
    """Returns (x - mean) / deviation, and 1 / deviation."""
    center = _mean(x)
    x = [tile - center for tile in x]
    scale = jax.lax.rsqrt(_mean([tile * tile for tile in x]) + epsilon)
    return [tile * scale for tile in x], scale


def _norm_gradients(
    upstream: Tiles, y: Tiles, scale: jax.Array, gamma: Tiles
) -> tuple[Tiles, Tiles]:
    """Returns the gradients of a LayerNorm for its inputs and gamma; y and scale are standardized.

    Those of gamma are not yet summed over the tokens, as is `upstream`, those of beta.
    """
    inner = [tile * g for tile, g in zip(upstream, gamma, strict=True)]
    center = _mean(inner)
    slope = _mean([tile * each for tile, each in zip(inner, y, strict=True)])
    to_x = [(tile - center - each * slope) * scale for tile, each in zip(inner, y, strict=True)]
    return to_x, [tile * each for tile, each in zip(upstream, y, strict=True)]


def _biased_activation(
    product: jax.Array,
    bias: jax.Array | None,
    *,
    activation: Callable[[Any], Any],
    mesh: Any,
    interpret: bool,
) -> jax.Array | None:
    if bias is None or not _has_tiles(product):
        return None
    activation = _ACTIVATIONS.get(activation, activation)

    def compute(_: Tiles, rows: Sequence[Tiles], weights: Sequence[Tiles]) -> tuple[list, list]:
        return [[activation(x + b) for x, b in zip(*rows, *weights, strict=True)]], []

    def differentiate(
        _: Tiles, rows: Sequence[Tiles], weights: Sequence[Tiles]
    ) -> tuple[list, list]:
        to_product = []
        for x, upstream, b in zip(*rows, *weights, strict=True):
            _, pull = jax.vjp(activation, x + b)
            to_product += pull(upstream)
        return [to_product], [to_product]

    chain = _chain(compute, differentiate, [product.dtype], min(_width(product), 512), interpret)
    return _on_each_device(chain, mesh)((product,), (bias,), _keys(None, product))


def _gelu_kernel(distribution: Callable[[jax.Array], tuple]) -> Callable[[jax.Array], jax.Array]:
    """Makes the kernel's function x F(x) from a function that returns F(x) and its derivative.

    On a GPU, exp2 and rsqrt are one instruction each; exp, tanh and a quotient are about ten.
    """

    @jax.custom_jvp
    def gelu(x: jax.Array) -> jax.Array:
        return x * distribution(x)[0]

    @gelu.defjvp
    def _(primals: tuple, tangents: tuple) -> tuple:
        (x,), (tangent,) = primals, tangents
        probability, density = distribution(x)
        return x * probability, tangent * (probability + x * density)

    return gelu


def _normal(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the normal distribution Φ(x), with an error below 1e-7, and its density φ(x)."""
    density = jnp.exp2((-0.5 * math.log2(math.e)) * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    # Abramowitz and Stegun 1964, formula 7.1.26, for 1 - erf(|x| / √2) = 2 (1 - Φ(|x|)).
    t = jax.lax.rsqrt(1.0 + 0.3275911 * math.sqrt(0.5) * jnp.abs(x))
    t, tail = t * t, 0.0
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = (tail + coefficient * math.sqrt(0.5 * math.pi)) * t
    tail *= density
    return jnp.where(x < 0.0, tail, 1.0 - tail), density


def _logistic(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)) of `gelu_tanh`, and its derivative."""
    linear = 2.0 * math.sqrt(2.0 / math.pi)
    cubic = 0.044715 * linear
    square, base_2 = x * x, -math.log2(math.e)
    root = jax.lax.rsqrt(1.0 + jnp.exp2(x * (linear * base_2 + (cubic * base_2) * square)))
    probability = root * root
    return probability, (probability - probability * probability) * (
        linear + (3.0 * cubic) * square
    )


_ACTIVATIONS = {gelu_erf: _gelu_kernel(_normal), gelu_tanh: _gelu_kernel(_logistic)}


def _biased(product: jax.Array, bias: jax.Array | None, **_: Any) -> jax.Array | None:
    if bias is None:
        return None

    @jax.custom_vjp
    def chain(product: jax.Array, bias: jax.Array) -> jax.Array:
        return product + bias.astype(product.dtype)

    def backward(_: None, upstream: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = upstream.reshape(-1, upstream.shape[-1])
        return upstream, jnp.sum(rows, axis=0, dtype="float32")

    chain.defvjp(lambda *inputs: (chain(*inputs), None), backward)
    return chain(keras.ops.convert_to_tensor(product), keras.ops.convert_to_tensor(bias))


def _biased_logits(product: jax.Array, bias: jax.Array, **_: Any) -> jax.Array:
    @jax.custom_vjp
    def chain(product: jax.Array, bias: jax.Array) -> jax.Array:
        return biased_logits.__wrapped__(product, bias)

    def backward(_: None, upstream: jax.Array) -> tuple[jax.Array, jax.Array]:
        padding = [(0, 0)] * (upstream.ndim - 1) + [(0, product.shape[-1] - upstream.shape[-1])]
        # Rounded first, so that XLA writes the gradient only once, with 16 bits.
        gradient = jnp.pad(upstream.astype(product.dtype), padding)
        rows = gradient.reshape(-1, gradient.shape[-1])
        return gradient, jnp.sum(rows, axis=0, dtype="float32")[: upstream.shape[-1]]

    chain.defvjp(lambda *inputs: (chain(*inputs), None), backward)
    return chain(keras.ops.convert_to_tensor(product), keras.ops.convert_to_tensor(bias))


def _prediction_sums(
    logits: jax.Array, labels: jax.Array, weights: jax.Array, **_: Any
) -> jax.Array:
    classes = jnp.arange(logits.shape[-1])

    def sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> tuple:
        largest = jnp.max(logits, axis=-1, keepdims=True)
        log_sum = jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)) + largest[..., 0]
        # Not a gather, for which XLA would write all logits.
        score = jnp.sum(jnp.where(classes == labels[..., None], logits, 0.0), axis=-1)
        first = jnp.min(jnp.where(logits == largest, classes, len(classes)), axis=-1)
        values = log_sum - score, (first == labels).astype("float32")
        return jnp.stack([jnp.sum(weights * value) for value in values]), log_sum

    @jax.custom_vjp
    def chain(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> jax.Array:
        return sums(logits, labels, weights)[0]

    def forward(*inputs: jax.Array) -> tuple[jax.Array, tuple]:
        result, log_sum = sums(*inputs)
        return result, (*inputs, log_sum)

    def backward(saved: tuple, upstream: jax.Array) -> tuple:
        logits, labels, weights, log_sum = saved
        gradient = jnp.exp(logits - log_sum[..., None]) - (classes == labels[..., None])
        return gradient * (upstream[0] * weights)[..., None], None, None

    chain.defvjp(forward, backward)
    return chain(logits, labels, weights)


def _on_each_device(chain: Callable[..., jax.Array], mesh: Any) -> Callable[..., jax.Array]:
    """Makes each device of a mesh compute its rows; XLA cannot divide a kernel."""

    def call(rows: tuple, weights: tuple, keys: jax.Array) -> jax.Array:
        arrays = jax.tree.map(keras.ops.convert_to_tensor, (rows, weights, keys))
        if mesh is None:
            return chain(*arrays)
        examples = PartitionSpec("batch")
        return jax.shard_map(
            chain,
            mesh=mesh,
            in_specs=(examples, PartitionSpec(), examples),
            out_specs=examples,
            check_vma=False,
        )(*arrays)

    return call


# --- kernels ---


def _run(
    compute: Callable[..., tuple[list[Tiles], list[Tiles]]],
    rows: tuple[jax.Array, ...],
    weights: tuple[jax.Array, ...],
    keys: jax.Array,
    dtypes: Sequence[Any],
    num_sums: int,
    *,
    rate: float,
    columns: int,
    interpret: bool,
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Computes all tokens with one kernel: the results [B, S, H], and the sums, float32 [H].

    `compute` is a function of the factors of dropout for R tokens, their tiles of each of `rows`,
    [B, S, H], and the tiles of each of `weights`, float32 [H]. It returns the tiles of each result,
    which have the `dtypes`, and of each of the `num_sums` sums over all tokens. `keys`, [B] int32,
    are those of dropout. A program computes a number of `columns` of a token.
    """
    batch, length, size = rows[0].shape
    tokens, group = batch * length, _TOKENS  # `group` is the number of tokens of a program.
    while length % (2 * group) == 0 and tokens * size >= 2 * group * columns * _PROGRAMS:
        group *= 2

    def kernel(*refs: Any) -> None:
        refs = list(refs)
        row_refs, weight_refs = refs[: len(rows)], refs[len(rows) : len(rows) + len(weights)]
        keys_ref, *output_refs = refs[len(rows) + len(weights) :]
        program = pl.program_id(0)
        token = program * group % length
        key = keys_ref[program * group // length]
        vectors = [_read(ref, slice(None)) for ref in weight_refs]
        starts = range(0, columns, vectors[0][0].shape[1])

        def add_tile(index: Any, sums: list[Tiles]) -> list[Tiles]:
            of_tile = pl.ds(index * _TOKENS, _TOKENS)
            # Chains with dropout have all columns in one program.
            first = (token + index * _TOKENS) * size
            factors = [
                _factors(key, first + start, size, vectors[0][0].shape[1], rate) for start in starts
            ]
            results, terms = compute(factors, [_read(ref, of_tile) for ref in row_refs], vectors)
            for ref, tiles in zip(output_refs, results, strict=False):
                _write(ref, of_tile, tiles)
            return jax.tree.map(jnp.add, sums, terms)

        zeros = jnp.zeros((_TOKENS, vectors[0][0].shape[1]), "float32")
        sums = [[zeros] * len(starts) for _ in range(num_sums)]
        sums = jax.lax.fori_loop(0, group // _TOKENS, add_tile, sums)
        for index, tiles in enumerate(sums):
            tiles = [jnp.sum(tile, axis=0, keepdims=True) for tile in tiles]
            _write(output_refs[-1], pl.ds(index, 1), tiles)

    tile = pl.BlockSpec((group, columns), lambda i, j: (i, j))
    vector = pl.BlockSpec((1, columns), lambda i, j: (0, j))
    sums = pl.BlockSpec((None, num_sums, columns), lambda i, j: (i, 0, j))
    like = jax.ShapeDtypeStruct
    shapes = [like((tokens, size), dtype) for dtype in dtypes]
    if num_sums:
        shapes.append(like((tokens // group, num_sums, size), "float32"))
    outputs = pl.pallas_call(
        kernel,
        grid=(tokens // group, size // columns),
        in_specs=[tile] * len(rows)
        + [vector] * len(weights)
        + [pl.BlockSpec(keys.shape, lambda i, j: (0,))],
        out_specs=[tile] * len(dtypes) + [sums] * bool(num_sums),
        out_shape=shapes,
        compiler_params=triton.CompilerParams(num_warps=_WARPS),
        interpret=interpret,
        name=compute.__qualname__.split(".")[0].strip("_"),
    )(*(each.reshape(tokens, size) for each in rows), *(each[None] for each in weights), keys)
    results = tuple(each.reshape(batch, length, size) for each in outputs[: len(dtypes)])
    return results, tuple(jnp.sum(outputs[-1], axis=0)) if num_sums else ()


def _width(x: jax.Array) -> int:
    """Returns C for tokens [..., H]; the sizes of Triton's tiles are powers of two."""
    return min(x.shape[-1] & -x.shape[-1], _WIDEST)


def _has_tiles(x: jax.Array) -> bool:
    """Returns whether the tokens can be divided into tiles."""
    return x.shape[1] % _TOKENS == 0 and _width(x) >= _NARROWEST


def _read(ref: Any, tokens: Any) -> Tiles:
    """Reads tokens as tiles."""
    width = _width(ref)
    starts = range(0, ref.shape[-1], width)
    return [ref[tokens, pl.ds(start, width)].astype("float32") for start in starts]


def _write(ref: Any, tokens: Any, tiles: Tiles) -> None:
    """Writes tiles in the dtype of the array."""
    for index, tile in enumerate(tiles):
        width = tile.shape[1]
        ref[tokens, pl.ds(index * width, width)] = tile.astype(ref.dtype)


def _factors(key: Any, first: Any, size: int, width: int, rate: float) -> Any:
    """Returns the factors of dropout for a tile (see `drop` in layers.py).

    `first` is the index of the tile's first value in its row, and `size` the distance of tokens.
    """
    if rate == 0.0:
        return 1.0
    least, factor = dropout_bounds(rate)
    shape = (_TOKENS, width)
    token = jax.lax.broadcasted_iota("int32", shape, 0) * size
    value = first + token + jax.lax.broadcasted_iota("int32", shape, 1)
    words = random_words(key, value >> 1)
    # A word has the bits of two values: the lower 16 are those of the first one.
    bits = jnp.where(value & 1, words, words << 16)
    return jnp.where(bits >= least << 16, factor, 0.0)
