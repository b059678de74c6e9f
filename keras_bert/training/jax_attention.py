"""Computes attention with fused kernels on NVIDIA GPUs, for JAX.

    without dropout   cuDNN's kernel
    with dropout      the Pallas kernels of this file: cuDNN cannot apply this library's masks

Both are flash attention (Dao et al. 2022; Dao 2023, FlashAttention-2): the scores, [B, N, S, S],
are never in memory. The kernels with dropout read the keys as S/2 pairs of an even and an odd
position, because each 32-bit word of random_bits.py decides about two neighbouring elements. One
tile of words then serves two tiles of scores, of the even and of the odd keys.

Shapes: B rows, S tokens, N heads, D values per head.
"""

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import keras
from absl import logging
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.sharding import PartitionSpec

from keras_bert.models.attention import MASKED_SCORE, attend_with
from keras_bert.models.layers import dropout_bounds
from keras_bert.random_bits import random_words


class Blocks(NamedTuple):
    """The size of a tile, queries by pairs of keys, and how Triton compiles the kernel."""

    queries: int
    pairs: int
    warps: int
    stages: int = 2

    def of(self, length: int) -> "Blocks":
        """Returns the blocks for sequences of `length` tokens: powers of two that divide it."""
        queries, pairs = math.gcd(self.queries, length), math.gcd(self.pairs, length // 2)
        return self._replace(queries=queries, pairs=pairs)


class KernelSettings(NamedTuple):
    """The settings of the kernels with dropout; `rate` is the dropout rate.

    The blocks were the fastest of five settings on an H200.
    """

    scale: float
    causal: bool
    rate: float
    forward: Blocks = Blocks(64, 32, 4)
    backward_keys: Blocks = Blocks(32, 64, 4, 3)
    backward_queries: Blocks = Blocks(64, 32, 4)
    interpret: bool = False


_SMALLEST_LENGTH = 32  # A tile has at least 16 pairs of keys, which tensor cores need.
_LOG2_E = math.log2(math.e)  # The kernels compute powers of 2, as GPUs do.


# --- choice of the kernel ---


def fused_attention(
    model: keras.Model, batch: Mapping[str, jax.Array], sharding: Any = None
) -> contextlib.AbstractContextManager:
    """Returns a context in which attention is fused if the GPU supports it for the model and batch.

    cuDNN's kernel supports 16-bit dtypes and some head sizes on recent NVIDIA GPUs. The kernels
    with dropout also need a head size of 16, 32 or 64, and lengths divisible by 32. Where a
    kernel is not supported, models/attention.py computes attention, and the reason is logged once.

    `sharding` is that of a variable. On several devices, each one computes dropout for its rows.
    """
    if jax.devices()[0].platform != "gpu":
        return contextlib.nullcontext()
    if reason := _unsupported(model, batch):
        logging.log_first_n(
            logging.INFO, "Attention is computed without cuDNN's fused kernel: %s", 1, reason
        )
        return contextlib.nullcontext()
    mesh = getattr(sharding, "mesh", None)

    def attend_or_decline(
        heads: Sequence[jax.Array], *masks: Any, drop_key: Any = None, rate: float = 0.0
    ) -> jax.Array | None:
        if drop_key is None or rate == 0.0:
            return attend(heads, *masks)
        if reason := _unsupported_with_dropout(*heads[0].shape[1::2]):
            logging.log_first_n(
                logging.INFO, "Attention with dropout is computed unfused: %s", 1, reason
            )
            return None
        return attend_with_dropout(heads, *masks, drop_key=drop_key, rate=rate, mesh=mesh)

    return attend_with(attend_or_decline)


def compute_capability(device: jax.Device) -> tuple[int, ...] | None:
    """Returns the compute capability of an NVIDIA GPU, such as (8, 0); None for others."""
    try:
        return tuple(map(int, device.compute_capability.split(".")))
    except (AttributeError, ValueError):  # AMD's GPUs have a name, such as "gfx90a".
        return None


def _unsupported(model: keras.Model, batch: Mapping[str, jax.Array]) -> str | None:
    """Returns why cuDNN cannot compute attention, else None."""
    capability = compute_capability(jax.devices()[0])
    if capability is None:
        return "the GPU is not of NVIDIA"
    if capability < (8, 0):
        return "the GPU has compute capability {}.{}; expected at least 8.0".format(*capability)
    if model.compute_dtype not in ("bfloat16", "float16"):
        return f"the compute dtype is {model.compute_dtype}; expected bfloat16 or float16"
    size = model.config.hidden_size // model.config.num_attention_heads
    largest = 256 if capability == (9, 0) else 128
    if size % 8 or size > largest:
        return f"the head size is {size}; expected a multiple of 8, at most {largest}"
    length = batch["input_mask"].shape[1]
    if "example_ids" in batch and length % 2:  # cuDNN gets the mask between examples as a bias.
        return f"packed rows have {length} tokens; expected an even number"
    return None


def _unsupported_with_dropout(length: int, head_size: int) -> str | None:
    """Returns why the kernels with dropout cannot compute attention, else None."""
    if head_size not in (16, 32, 64):
        return f"the head size is {head_size}; expected 16, 32 or 64"
    if length % _SMALLEST_LENGTH:
        return f"rows have {length} tokens; expected a multiple of {_SMALLEST_LENGTH}"
    return None


# --- without dropout ---


def attend(
    heads: Sequence[jax.Array],
    input_mask: jax.Array,
    example_ids: jax.Array | None,
    scale: float,
    causal: bool = False,
    *,
    implementation: str = "cudnn",
) -> jax.Array:
    """Computes softmax(scale · QKᵀ + mask)V for each head with `jax.nn.dot_product_attention`.

    `heads` are query, key and value, each [B, S, N, D], which is also the shape of the result.
    `input_mask`, [B, S] int32, must have its padding at the end of a row; `example_ids` are as in
    models/attention.py. `implementation` is `cudnn`, or `xla` for any device.
    """
    how: dict[str, Any] = {"scale": scale, "is_causal": causal, "implementation": implementation}
    if example_ids is not None:
        mask = (example_ids[:, :, None] == example_ids[:, None, :])[:, None]
        return jax.nn.dot_product_attention(*heads, mask=mask, **how)
    # At least one key, because a row of only padding would give NaN, even with weight 0.
    lengths = jnp.maximum(jnp.sum(input_mask, axis=-1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(*heads, key_value_seq_lengths=lengths, **how)


# --- with dropout ---


def attend_with_dropout(
    heads: Sequence[jax.Array],
    input_mask: jax.Array,
    example_ids: jax.Array | None,
    scale: float,
    causal: bool = False,
    *,
    drop_key: jax.Array,
    rate: float,
    mesh: Any = None,
    **settings: Any,
) -> jax.Array:
    """Computes dropout(softmax(scale · QKᵀ + mask))V for each head, with Pallas kernels.

    The mask and the dropped probabilities are those of `attention_probabilities`. The arguments are
    those of `attend`, but padding may be anywhere; S must be divisible by 32, and D be 16, 32 or
    64. `drop_key` is [B] int32 from `Dropout.key`. The rows are divided among the axis "batch" of
    the `mesh`; None for one device. `settings` are other fields of `KernelSettings`.
    """
    if example_ids is None:
        key_mask = (1.0 - input_mask.astype(jnp.float32)) * (MASKED_SCORE * _LOG2_E)
    else:
        key_mask = example_ids
    masks = _in_pairs(key_mask), example_ids
    function = functools.partial(_attention, KernelSettings(scale, causal, rate, **settings))
    if mesh is not None:  # XLA does not divide the work of a Pallas kernel.
        rows = PartitionSpec("batch")
        function = jax.shard_map(
            function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False
        )
    return function(tuple(heads), masks, drop_key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(how: KernelSettings, heads: tuple, masks: tuple, drop_key: jax.Array) -> jax.Array:
    return _forward(how, heads, masks, drop_key)[0]


def _forward(
    how: KernelSettings, heads: tuple, masks: tuple, drop_key: jax.Array
) -> tuple[jax.Array, tuple]:
    """Returns the result [B, S, N, D], and what the backward pass needs."""
    q, k, v = heads
    length, count = q.shape[1:3]
    inputs = _Tiles(
        q=q,
        k=_in_pairs(k),
        v=_in_pairs(v),
        key_mask=masks[0],
        ids=masks[1],
        drop_key=drop_key[:, None],
    )
    statistics = jax.ShapeDtypeStruct((len(q), count, length), jnp.float32)
    outputs = _run(_forward_kernel, how, how.forward, inputs, _Tiles(q=q, log_sum=statistics))
    inputs = inputs._replace(log_sum=outputs.log_sum)
    return outputs.q, (inputs, outputs.q)


def _backward(how: KernelSettings, saved: tuple, upstream: jax.Array) -> tuple:
    """Returns the gradients of the heads."""
    inputs, result = saved
    delta = jnp.sum(result.astype(jnp.float32) * upstream.astype(jnp.float32), axis=-1)
    # [B, N, S]. The kernels apply the factor of dropout last.
    delta = jnp.swapaxes(delta, 1, 2) / _factor(how.rate)
    inputs = inputs._replace(upstream=upstream, delta=delta)
    q, k, v = inputs.q, inputs.k, inputs.v
    of_keys = _run(_keys_kernel, how, how.backward_keys, inputs, _Tiles(k=k, v=v), by_pairs=True)
    of_queries = _run(_queries_kernel, how, how.backward_queries, inputs, _Tiles(q=q))
    gradients = of_queries.q, of_keys.k.reshape(q.shape), of_keys.v.reshape(q.shape)
    return gradients, (None, None), None


_attention.defvjp(_forward, _backward)


class _Tiles(NamedTuple):
    """The arrays of a kernel. In it, they are the parts of a row and a head that a program needs.

    The programs of a kernel each have a block of queries and all keys or, to compute the gradients
    of keys and values, a block of pairs of keys and all queries. An input that is not used is None.
    """

    q: Any = None  # [B, S, N, D], as `upstream`
    k: Any = None  # [B, S/2, 2, N, D], as `v`
    v: Any = None
    key_mask: Any = None  # [B, S/2, 2]: added to the scores, or example ids
    ids: Any = None  # [B, S]: example ids, or None if a row is one example
    drop_key: Any = None  # [B, 1]
    upstream: Any = None  # the gradient of the result
    log_sum: Any = None  # [B, N, S]: log2 of the sum of exp(score) over the keys
    delta: Any = None  # [B, N, S]: the sum of probability · gradient over the keys


def _run(
    kernel: Any,
    how: KernelSettings,
    blocks: Blocks,
    inputs: _Tiles,
    outputs: _Tiles,
    by_pairs: bool = False,
) -> _Tiles:
    """Runs a kernel for all rows, heads and blocks of queries, or blocks of pairs of keys.

    `outputs` has arrays with the shapes and dtypes of the results.
    """
    batch, length, count, size = inputs.q.shape
    blocks = blocks.of(length)
    queries = length if by_pairs else blocks.queries
    pairs = blocks.pairs if by_pairs else length // 2

    def part(shape: tuple, position: Any) -> pl.BlockSpec:
        """`position` maps the row, the head, and the blocks of queries and of pairs to a block."""
        return pl.BlockSpec(
            shape, lambda i, n, b: position(b, n, *((0, i) if by_pairs else (i, 0)))
        )

    of_queries = part((None, queries, None, size), lambda b, n, i, j: (b, i, n, 0))
    of_pairs = part((None, pairs, 2, None, size), lambda b, n, i, j: (b, j, 0, n, 0))
    statistics = part((None, None, queries), lambda b, n, i, j: (b, n, i))
    specs = _Tiles(
        q=of_queries,
        k=of_pairs,
        v=of_pairs,
        key_mask=part((None, pairs, 2), lambda b, n, i, j: (b, j, 0)),
        ids=part((None, queries), lambda b, n, i, j: (b, i)),
        drop_key=part((None, 1), lambda b, n, i, j: (b, 0)),
        upstream=of_queries,
        log_sum=statistics,
        delta=statistics,
    )
    present = [name for name, array in outputs._asdict().items() if array is not None]

    def specs_of(arrays: _Tiles) -> _Tiles:
        unused = {name: None for name, array in arrays._asdict().items() if array is None}
        return specs._replace(**unused)

    results = pl.pallas_call(
        functools.partial(kernel, how, blocks),
        grid=(length // 2 // pairs if by_pairs else length // queries, count, batch),
        in_specs=[specs_of(inputs)],
        out_specs=[getattr(specs, name) for name in present],
        out_shape=[
            jax.ShapeDtypeStruct(array.shape, array.dtype) for array in outputs if array is not None
        ],
        compiler_params=triton.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=how.interpret,
        name=kernel.__name__.strip("_"),
    )(inputs)
    return _Tiles(**dict(zip(present, results, strict=True)))


def _forward_kernel(how: KernelSettings, blocks: Blocks, inputs: _Tiles, result: Any, log_sum: Any):
    """Computes the result and `log_sum` of a block of queries."""
    queries = pl.program_id(0) * blocks.queries + jnp.arange(blocks.queries)
    length, drop_key = 2 * inputs.k.shape[0], inputs.drop_key[0]
    first_words = (pl.program_id(1) * length + queries) * (length // 2)
    q = inputs.q[...]
    query_ids = None if inputs.ids is None else inputs.ids[...][:, None]

    def add_keys(j: Any, carry: tuple) -> tuple:
        total, largest, normalizer = carry
        tile = pl.ds(j * blocks.pairs, blocks.pairs)
        pairs = j * blocks.pairs + jnp.arange(blocks.pairs)
        bits = _bits(first_words[:, None] + pairs[None, :], drop_key)
        scores = []
        for parity in (0, 1):
            mask = inputs.key_mask[tile, parity][None, :]
            keys = 2 * pairs[None, :] + parity
            x = _product(q, inputs.k[tile, parity, :].T)
            scores.append(_scores(how, x, mask, query_ids, queries[:, None], keys))
        new_largest = jnp.maximum(largest, jnp.max(jnp.maximum(*scores), axis=1))
        even, odd = (_exp2(how, x - new_largest[:, None]) for x in scores)
        shrink = _exp2(how, largest - new_largest)
        normalizer = normalizer * shrink + jnp.sum(even + odd, axis=1)
        total = total * shrink[:, None]
        for parity, x in enumerate((even, odd)):
            x = _drop(how, x, bits[parity]).astype(q.dtype)
            total += _product(x, inputs.v[tile, parity, :])
        return total, new_largest, normalizer

    first = (
        jnp.zeros(q.shape, jnp.float32),
        jnp.full(blocks.queries, -jnp.inf, jnp.float32),
        jnp.zeros(blocks.queries, jnp.float32),
    )
    steps = length // 2 // blocks.pairs
    total, largest, normalizer = lax.fori_loop(0, steps, add_keys, first)
    result[...] = (total * (_factor(how.rate) / normalizer)[:, None]).astype(result.dtype)
    log_sum[...] = largest + jnp.log(normalizer) * _LOG2_E


def _queries_kernel(how: KernelSettings, blocks: Blocks, inputs: _Tiles, dq: Any):
    """Computes the gradients of a block of queries."""
    queries = pl.program_id(0) * blocks.queries + jnp.arange(blocks.queries)
    length, drop_key = 2 * inputs.k.shape[0], inputs.drop_key[0]
    first_words = (pl.program_id(1) * length + queries) * (length // 2)
    q, upstream = inputs.q[...], inputs.upstream[...]
    log_sum, delta = inputs.log_sum[...][:, None], inputs.delta[...][:, None]
    query_ids = None if inputs.ids is None else inputs.ids[...][:, None]

    def add_keys(j: Any, total: jax.Array) -> jax.Array:
        tile = pl.ds(j * blocks.pairs, blocks.pairs)
        pairs = j * blocks.pairs + jnp.arange(blocks.pairs)
        bits = _bits(first_words[:, None] + pairs[None, :], drop_key)
        for parity in (0, 1):
            k = inputs.k[tile, parity, :]
            mask = inputs.key_mask[tile, parity][None, :]
            keys = 2 * pairs[None, :] + parity
            x = _scores(how, _product(q, k.T), mask, query_ids, queries[:, None], keys)
            x = _exp2(how, x - log_sum)
            gradient = _product(upstream, inputs.v[tile, parity, :].T)
            gradient = x * (_drop(how, gradient, bits[parity]) - delta)
            total += _product(gradient.astype(k.dtype), k)
        return total

    steps = length // 2 // blocks.pairs
    total = lax.fori_loop(0, steps, add_keys, jnp.zeros(q.shape, jnp.float32))
    dq[...] = (total * (how.scale * _factor(how.rate))).astype(dq.dtype)


def _keys_kernel(how: KernelSettings, blocks: Blocks, inputs: _Tiles, dk: Any, dv: Any):
    """Computes the gradients of a block of keys and values. Scores are keys by queries here."""
    pairs = pl.program_id(0) * blocks.pairs + jnp.arange(blocks.pairs)
    length, drop_key, head = inputs.q.shape[0], inputs.drop_key[0], pl.program_id(1)
    both = (0, 1)
    k, v = ([array[:, parity, :] for parity in both] for array in (inputs.k, inputs.v))
    masks = [inputs.key_mask[:, parity][:, None] for parity in both]

    def add_queries(i: Any, carry: list) -> list:
        tile = pl.ds(i * blocks.queries, blocks.queries)
        queries = i * blocks.queries + jnp.arange(blocks.queries)
        q, upstream = inputs.q[tile, :], inputs.upstream[tile, :]
        log_sum, delta = inputs.log_sum[tile][None, :], inputs.delta[tile][None, :]
        query_ids = None if inputs.ids is None else inputs.ids[tile][None, :]
        first_words = (head * length + queries) * (length // 2)
        bits = _bits(first_words[None, :] + pairs[:, None], drop_key)
        totals = []
        for parity, (of_keys, of_values) in zip(both, carry, strict=True):
            keys = 2 * pairs[:, None] + parity
            x = _product(k[parity], q.T)
            x = _scores(how, x, masks[parity], query_ids, queries[None, :], keys)
            x = _exp2(how, x - log_sum)
            dropped = _drop(how, x, bits[parity]).astype(q.dtype)
            of_values += _product(dropped, upstream)
            gradient = _product(v[parity], upstream.T)
            gradient = x * (_drop(how, gradient, bits[parity]) - delta)
            of_keys += _product(gradient.astype(q.dtype), q)
            totals.append((of_keys, of_values))
        return totals

    steps = length // blocks.queries
    first = [(jnp.zeros(x.shape, jnp.float32), jnp.zeros(x.shape, jnp.float32)) for x in k]
    totals = lax.fori_loop(0, steps, add_queries, first)
    for parity, (of_keys, of_values) in enumerate(totals):
        dk[:, parity, :] = (of_keys * (how.scale * _factor(how.rate))).astype(dk.dtype)
        dv[:, parity, :] = (of_values * _factor(how.rate)).astype(dv.dtype)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _scores(
    how: KernelSettings, x: Any, key_mask: Any, query_ids: Any, queries: Any, keys: Any
) -> Any:
    """Returns a tile of (scale · x + mask) · log2(e); `query_ids` are the queries' example ids."""
    bias = key_mask
    if query_ids is not None:
        bias = jnp.where(key_mask == query_ids, 0.0, MASKED_SCORE * _LOG2_E)
    if how.causal:
        bias = bias + jnp.where(keys > queries, MASKED_SCORE * _LOG2_E, 0.0)
    factor = how.scale * _LOG2_E
    if how.interpret:
        return x * factor + bias
    inputs = [x, jnp.full_like(x, factor), jnp.broadcast_to(bias, x.shape)]
    return _instruction("fma.rn.f32 $0, $1, $2, $3;", inputs, "f,f,f")


def _exp2(how: KernelSettings, x: jax.Array) -> jax.Array:
    """Returns 2 ** x; results below 2 ** -126 are 0, which saves three instructions."""
    return jnp.exp2(x) if how.interpret else _instruction("ex2.approx.ftz.f32 $0, $1;", [x], "f")


def _instruction(assembly: str, inputs: list[jax.Array], registers: str) -> jax.Array:
    """Returns the float32 result of PTX instructions for each element of the inputs.

    `registers` has the kinds of registers of the inputs: f for float32, r for int32.
    """
    shape = jax.ShapeDtypeStruct(inputs[0].shape, jnp.float32)
    return triton.elementwise_inline_asm(
        assembly, args=inputs, constraints=f"=f,{registers}", pack=1, result_shape_dtypes=[shape]
    )[0]


def _bits(index: jax.Array, drop_key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the bits of the even and of the odd keys of a tile, in the upper half of an int32.

    They are the `random_bits` of the probabilities [N, S, S] of a row. `index` has the indices of
    the tile's words, each of which has the bits of two probabilities.
    """
    words = random_words(drop_key, index)
    return words << 16, words


def _drop(how: KernelSettings, x: jax.Array, bits: jax.Array) -> jax.Array:
    """Sets the elements of a tile to zero that `drop` does, and does not scale the others."""
    # The lower bits change no comparison.
    least = dropout_bounds(how.rate)[0] << 16
    if how.interpret:
        return jnp.where(bits >= least, x, 0.0)
    # LLVM would move a selection after the conversion to 16 bits, where it takes more instructions.
    return _instruction(
        f"{{ .reg .pred p; setp.ge.s32 p, $2, {least}; selp.f32 $0, $1, 0f00000000, p; }}",
        [x, bits],
        "f,r",
    )


def _factor(rate: float) -> float:
    """Returns the factor of the elements that dropout keeps."""
    return dropout_bounds(rate)[1]


def _in_pairs(x: jax.Array) -> jax.Array:
    """Splits the tokens into even and odd ones: [B, S, ...] -> [B, S/2, 2, ...]."""
    return x.reshape(len(x), -1, 2, *x.shape[2:])
