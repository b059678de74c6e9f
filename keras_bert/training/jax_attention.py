"""Computes attention with JAX in one kernel, without keeping the scores, [B, N, S, S], in memory.

cuDNN's kernel (flash attention, Dao et al. 2022) supports 16-bit dtypes and some head sizes on
recent NVIDIA GPUs. It cannot apply this library's dropout masks. With attention dropout, and where
the kernel is not supported, layers/attention.py computes attention.

Shapes: B rows, S tokens, N heads, D values per head.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
from absl import logging
from jax import numpy as jnp

from keras_bert.models.layers.attention import attend_with
from keras_bert.training.bfloat16_hardware import jax_compute_capability


def fused_attention(
    model: keras.Model, batch: Mapping[str, jax.Array]
) -> contextlib.AbstractContextManager:
    """Returns a context in which attention is fused if cuDNN supports it for the model and batch.

    On a GPU for which it is not supported, the reason is logged once.
    """
    if jax.devices()[0].platform != "gpu":
        return contextlib.nullcontext()
    if reason := _unsupported(model, batch):
        logging.log_first_n(
            logging.INFO, "Attention is computed without cuDNN's fused kernel: %s", 1, reason
        )
        return contextlib.nullcontext()
    return attend_with(attend)


def _unsupported(model: keras.Model, batch: Mapping[str, jax.Array]) -> str | None:
    """Returns why cuDNN cannot compute attention, else None."""
    capability = jax_compute_capability(jax.devices()[0])
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
