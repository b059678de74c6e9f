"""Compares attention with dropout by the GPU kernels, interpreted, with plain attention."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from keras_bert.config import BertConfig
from keras_bert.models.attention import SelfAttention, attend_with, attention_probabilities
from keras_bert.random_bits import site_key
from keras_bert.training.jax_attention import Blocks, attend_with_dropout
from keras_bert.training.jax_step import JaxDevices

RATE, ROWS, HEADS = 0.1, 2, 2
# Length, head size, dtype, and other settings.
CASES = {
    "packed": (96, 32, "float32", {"packed": True}),
    "causal": (64, 16, "float32", {"causal": True}),
    "bfloat16": (32, 64, "bfloat16", {}),
}
SMALL = dict.fromkeys(
    ("forward", "backward_keys", "backward_queries"), Blocks(queries=32, pairs=16, warps=4)
)


def plain(
    heads: list, input_mask: Any, ids: Any, scale: float, causal: bool = False, **dropout: Any
) -> Any:
    """Computes attention with the scores in memory, as `SelfAttention` does."""
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in heads)
    scores = jnp.matmul((q * scale).astype(q.dtype), jnp.swapaxes(k, 2, 3))
    probabilities = attention_probabilities(
        scores, input_mask, ids, dropout["drop_key"], rate=dropout["rate"], causal=causal
    )
    return jnp.swapaxes(jnp.matmul(probabilities, v), 1, 2)


def inputs(length: int, size: int, dtype: str, packed: bool = False) -> tuple:
    """Returns heads, masks, keys of dropout and the gradient of the result, for a batch."""
    random = np.random.default_rng(length)
    *heads, upstream = random.normal(size=(4, ROWS, length, HEADS, size)).astype(dtype)
    input_mask = np.arange(length) < np.array([[length], [length // 2 + 3]])
    ids = (1 + np.arange(length) // 21) * input_mask if packed else None
    key = np.asarray(site_key(jnp.arange(ROWS, dtype="int32"), 3))
    masks = [None if x is None else x.astype(np.int32) for x in (input_mask, ids)]
    return heads, masks, key, upstream


def results(attend: Callable, batch: tuple, causal: bool = False) -> list[np.ndarray]:
    """Returns the result of attention and the gradients of query, key and value."""

    @jax.jit
    def compute(heads: list, masks: list, key: Any, upstream: Any) -> list:
        def function(heads: list) -> Any:
            return attend(heads, *masks, 0.3, causal, drop_key=key, rate=RATE)

        output, pull = jax.vjp(jax.checkpoint(function), heads)
        return [output, *pull(upstream)[0]]

    return [np.asarray(x, np.float32) for x in compute(*batch)]


def difference(ours: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Returns the largest difference of two arrays, relative to the norm of the second."""
    pairs = zip(ours, expected, strict=True)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


def differences() -> dict[str, float]:
    """Returns the difference between fused and plain attention for each case."""
    found = {}
    for case, (length, size, dtype, settings) in CASES.items():
        batch = inputs(length, size, dtype, settings.pop("packed", False))
        causal = settings.pop("causal", False)
        fused = partial(attend_with_dropout, interpret=True, **SMALL, **settings)
        found[case] = difference(results(fused, batch, causal), results(plain, batch, causal))
    devices = JaxDevices(keras.distribution.list_devices())
    heads, masks, key, upstream = inputs(64, 16, "float32")
    parts = {"key": key, "upstream": upstream, "mask": masks[0]}
    placed = devices.place({**parts, "q": heads[0], "k": heads[1], "v": heads[2]})
    mesh = placed["q"].sharding.mesh
    split = [placed[name] for name in "qkv"], [placed["mask"], None]
    fused = partial(attend_with_dropout, interpret=True, mesh=mesh)
    two = results(fused, (*split, placed["key"], placed["upstream"]))
    found["two devices"] = difference(two, results(plain, (heads, masks, key, upstream)))
    return found


def dropped_elements() -> list[int]:
    """Returns how many probabilities both forms, and how many only one of them, set to 0."""
    heads, masks, key, upstream = inputs(64, 64, "float32")
    masks = [np.ones_like(masks[0]), None]
    heads[2] = np.zeros_like(heads[2]) + np.eye(64, dtype=np.float32)[None, :, None]
    fused = partial(attend_with_dropout, interpret=True)
    one, two = (results(f, (heads, masks, key, upstream))[0] == 0 for f in (fused, plain))
    return [int((one & two).sum()), int((one ^ two).sum())]


def layer_difference() -> float:
    """Returns the difference of the results of a `SelfAttention` with and without the kernels."""
    config = BertConfig(
        1, 32, num_attention_heads=2, initializer_range=0.3, attention_probs_dropout_prob=RATE
    )
    layer = SelfAttention(config)
    layer.build((None, None, 32))
    hidden = np.random.default_rng(0).normal(size=(2, 32, 32)).astype(np.float32)
    calls = []

    def attend(*arguments: Any, **dropout: Any) -> Any:
        calls.append(len(calls))
        fused = attend_with_dropout(*arguments, interpret=True, **dropout)
        return fused if len(calls) == 1 else None

    def run() -> np.ndarray:
        return np.asarray(layer(hidden, np.ones([2, 32], np.int32), np.arange(2, dtype=np.int32)))

    expected = run()
    with attend_with(attend):
        fused, declined = run(), run()
    assert calls == [0, 1]
    assert np.array_equal(declined, expected)
    return difference([fused], [expected])
