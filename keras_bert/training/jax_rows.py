"""Selects rows of an embedding table with JAX, with a gradient that needs no scatter.

The default gradient adds one row after the other to the table, in no fixed order on GPUs, and
waits wherever a token repeats ([MASK] is an eighth of all tokens). Here, the rows are sorted by
token; matrix products then add the rows of one token, in an order that never changes.

Shapes: T tokens, V rows of the table, H hidden size.
"""

import contextlib
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

from keras_bert.models.layers.embeddings import take_rows_with

_CHUNK = 128  # The rows that one product adds.


def sorted_gradients(sharding: Any) -> contextlib.AbstractContextManager:
    """Returns a context in which the gradients of embedding tables need no scatter.

    `sharding` is that of a variable. On several devices, each one adds the rows of its examples.
    """
    mesh = getattr(sharding, "mesh", None)

    def sum_rows(ids: jax.Array, rows: jax.Array, count: int) -> jax.Array:
        if mesh is None:
            return sum_by_id(ids, rows, count)

        def on_device(ids: jax.Array, rows: jax.Array) -> jax.Array:
            return jax.lax.psum(sum_by_id(ids, rows, count), "batch")

        examples = PartitionSpec("batch")
        return jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(examples, examples),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(ids, rows)

    def take_rows(table: Any, ids: jax.Array) -> jax.Array:
        table = jnp.asarray(table)

        @jax.custom_vjp
        def take(table: jax.Array, ids: jax.Array) -> jax.Array:
            return jnp.take(table, ids, axis=0)

        def backward(ids: jax.Array, upstream: jax.Array) -> tuple[jax.Array, None]:
            return sum_rows(ids, upstream, len(table)), None

        take.defvjp(lambda table, ids: (take(table, ids), ids), backward)
        return take(table, ids)

    return take_rows_with(take_rows)


def sum_by_id(ids: jax.Array, rows: jax.Array, count: int) -> jax.Array:
    """Adds the rows of each id: row i of the result, [count, H], is the sum of the rows of id i.

    `rows` [..., H] has one row for each of the `ids` [...], which are int32 in [0, count).
    """
    ids, rows = ids.reshape(-1), rows.reshape(-1, rows.shape[-1])  # [T], [T, H]
    padding = -len(ids) % _CHUNK
    ids = jnp.pad(ids, (0, padding), constant_values=count)
    order = jnp.argsort(ids)
    ids = ids[order]
    rows = jnp.pad(rows, ((0, padding), (0, 0)))[order]

    # Within a chunk, each row becomes the sum of the chunk's rows with the same id.
    chunks = ids.reshape(-1, _CHUNK)
    same_id = chunks[:, :, None] == chunks[:, None, :]
    sums = _add(same_id, rows.reshape(-1, _CHUNK, rows.shape[-1]))
    # The first id of a chunk may have rows in earlier chunks: they are last there.
    first, last = chunks[:, 0], chunks[:, -1]
    continues = (first[:, None] == last[None, :]) & jnp.tri(len(chunks), k=-1, dtype=bool)
    carried = _add(continues, sums[:, -1])

    tokens = jnp.arange(count, dtype=ids.dtype)
    ends = jnp.searchsorted(ids, tokens, side="right", method="scan_unrolled") - 1
    # Otherwise, a compiler may search again for each of the H values of a row.
    ends = jax.lax.optimization_barrier(jnp.maximum(ends, 0))
    chunk = ends // _CHUNK
    total = sums.reshape(rows.shape)[ends]
    total += jnp.where((first[chunk] == tokens)[:, None], carried[chunk], 0.0)
    return jnp.where((ids[ends] == tokens)[:, None], total, 0.0)


def _add(selected: jax.Array, rows: jax.Array) -> jax.Array:
    """Adds the selected rows: bool [..., A, B] and [..., B, H] -> [..., A, H]."""
    return jnp.matmul(selected.astype(rows.dtype), rows, precision="highest")
