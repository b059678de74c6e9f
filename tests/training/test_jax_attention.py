"""Each GPU gets the kernels of attention that it supports."""

from types import SimpleNamespace

import numpy as np
import pytest
from absl import logging

from keras_bert.models import attention


@pytest.fixture
def on_gpu(monkeypatch, caplog):
    """Returns a function: (compute capability, dtype, head size, batch) -> context of kernels."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from keras_bert.training import jax_attention

    monkeypatch.setattr(jax_attention, "attend_with_dropout", lambda heads, *_, **__: heads[0])
    monkeypatch.setattr(
        "absl.logging.log_first_n", lambda level, text, n, *values: logging.info(text, *values)
    )
    caplog.set_level("INFO", "absl")

    def fused(capability, dtype, head_size, batch):
        gpu = SimpleNamespace(platform="gpu", compute_capability=capability)
        monkeypatch.setattr(jax, "devices", lambda: [gpu])
        config = SimpleNamespace(hidden_size=2 * head_size, num_attention_heads=2)
        model = SimpleNamespace(config=config, compute_dtype=dtype)
        return jax_attention.fused_attention(model, batch)

    return fused


@pytest.mark.parametrize(
    ("length", "head_size", "reason"),
    [
        (128, 64, None),
        (96, 16, None),
        (100, 64, "rows have 100 tokens; expected a multiple of 32"),
        (128, 40, "the head size is 40; expected 16, 32 or 64"),
    ],
)
def test_kernels_with_dropout_decline_shapes_that_they_do_not_support(
    on_gpu, caplog, length, head_size, reason
):
    heads = [np.zeros([2, length, 2, head_size])] * 3
    mask = np.ones([2, length], np.int32)
    with on_gpu("9.0", "bfloat16", head_size, {"input_mask": mask}):
        attend = attention._attend.get()
        result = attend(heads, mask, None, 1.0, False, drop_key=mask[:, 0], rate=0.1)
    assert (result is None) == bool(reason)
    line = f"Attention with dropout is computed unfused: {reason}"
    assert caplog.messages == ([line] if reason else [])


@pytest.mark.parametrize(
    ("capability", "dtype", "head_size", "length", "reason"),
    [
        ("8.0", "bfloat16", 64, 128, None),
        ("9.0", "float16", 256, 128, None),
        ("8.0", "bfloat16", 60, 128, "the head size is 60; expected a multiple of 8, at most 128"),
        (
            "9.0",
            "bfloat16",
            264,
            128,
            "the head size is 264; expected a multiple of 8, at most 256",
        ),
        ("7.5", "float16", 64, 128, "the GPU has compute capability 7.5; expected at least 8.0"),
        ("9.0", "float32", 64, 128, "the compute dtype is float32; expected bfloat16 or float16"),
        ("9.0", "bfloat16", 64, 127, "packed rows have 127 tokens; expected an even number"),
    ],
)
def test_attention_is_fused_only_where_cudnn_supports_it(
    on_gpu, caplog, capability, dtype, head_size, length, reason
):
    ids = np.ones([2, length], np.int32)
    with on_gpu(capability, dtype, head_size, {"input_mask": ids, "example_ids": ids}):
        assert (attention._attend.get() is None) == bool(reason)
    line = f"Attention is computed without cuDNN's fused kernel: {reason}"
    assert caplog.messages == ([line] if reason else [])
