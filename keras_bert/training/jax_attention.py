"""Computes attention with JAX in one kernel, without keeping the scores, [B, N, S, S], in memory.

cuDNN's kernel (flash attention, Dao et al. 2022) supports 16-bit dtypes on NVIDIA GPUs. It cannot
apply this library's dropout masks. With attention dropout, and for other devices and dtypes,
layers/attention.py computes attention.

Shapes: B rows, S tokens, N heads, D values per head.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp

from keras_bert.models.layers.attention import attend_with


def fused_attention(compute_dtype: str) -> contextlib.AbstractContextManager:
    """Returns a context in which attention is fused if the device and the dtype support it."""
    if jax.devices()[0].platform == "gpu" and compute_dtype in ("bfloat16", "float16"):
        return attend_with(attend)
    return contextlib.nullcontext()


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

    Args:
        heads: query, key and value, each [B, S, N, D], which is also the shape of the result.
        input_mask: [B, S] int32, 1 for tokens, 0 for padding, which must be at the end of a row.
        example_ids: [B, S] int32, from 1 for the examples of a row, 0 for padding; None if each row
            is one example.
        scale: factor of the scores.
        causal: whether tokens attend only to themselves and earlier tokens.
        implementation: `cudnn`, or `xla` for any device.
    """
    how: dict[str, Any] = {"scale": scale, "is_causal": causal, "implementation": implementation}
    if example_ids is not None:
        mask = (example_ids[:, :, None] == example_ids[:, None, :])[:, None]
        return jax.nn.dot_product_attention(*heads, mask=mask, **how)
    # At least one key, because a row of only padding would give NaN, even with weight 0.
    lengths = jnp.maximum(jnp.sum(input_mask, axis=-1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(*heads, key_value_seq_lengths=lengths, **how)
