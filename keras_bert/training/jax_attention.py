"""Fused attention with JAX, which never holds [B, N, S, S] in memory.

cuDNN's kernel (flash attention, Dao et al. 2022) takes 16-bit types on NVIDIA's GPUs. It drops no
probabilities by our masks, so it is used only where none are dropped: outside training, and in
training with attention_probs_dropout_prob 0. Otherwise layers/attention.py computes attention.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp

from keras_bert.models.layers.attention import attend_with


def fused_attention(compute_dtype: str) -> contextlib.AbstractContextManager:
    """Returns a block in which attention is fused where the device and the types allow it.

    Args:
        compute_dtype: the model's.
    """
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
    """Returns softmax(scale · QKᵀ + mask)V for each head, as one operation.

    Args:
        heads: query, key and value, each [B, S, N, D].
        input_mask: [B, S] int32, 1 for a token, 0 for padding, which ends a row.
        example_ids: [B, S] int32, or None where a row is one example.
        scale: factor on the scores.
        causal: whether a token attends only to itself and to those before it.
        implementation: cudnn, or xla for any device.

    Returns:
        [B, S, N, D]. Source: `jax.nn.dot_product_attention`.
    """
    how: dict[str, Any] = {"scale": scale, "is_causal": causal, "implementation": implementation}
    if example_ids is not None:
        mask = (example_ids[:, :, None] == example_ids[:, None, :])[:, None]
        return jax.nn.dot_product_attention(*heads, mask=mask, **how)
    # One key for rows that are all padding, as none would give NaN, even if they weigh nothing.
    lengths = jnp.maximum(jnp.sum(input_mask, axis=-1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(*heads, key_value_seq_lengths=lengths, **how)
