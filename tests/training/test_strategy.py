"""Choosing devices, the fastest precision for them, and distributing batches."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.training import strategy as strategies
from keras_bert.training.loop import peak_flops, peak_memory
from keras_bert.training.strategy import (
    check_state_dtype,
    distribute,
    fastest_precision,
    free,
    make_strategy,
)


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ("fpu amx_bf16 amx_tile", "bfloat16"),
        ("fpu avx512bw avx512_bf16", "bfloat16"),
        ("fpu avx512bw avx512_vnni", "float32"),
        (None, "float32"),  # An unknown processor.
    ],
)
def test_bfloat16_is_chosen_if_the_processor_supports_it(tmp_path, flags, precision):
    if flags:
        (tmp_path / "cpuinfo").write_text(f"flags\t\t: {flags}\nbugs\t\t:\n")
    assert fastest_precision(tmp_path / "cpuinfo") == precision


@pytest.mark.parametrize(
    ("details", "precision"),
    [
        ([{"compute_capability": (9, 0)}, {"compute_capability": (8, 0)}], "bfloat16"),
        ([{"compute_capability": (9, 0)}, {"compute_capability": (7, 5)}], "float32"),
        ([{}], "float32"),
    ],
)
def test_bfloat16_is_chosen_if_all_gpus_support_it(monkeypatch, details, precision):
    gpus = [str(i) for i in range(len(details))]
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else []
    )
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details[int(gpu)])
    assert fastest_precision() == precision


def test_more_devices_than_available_are_rejected():
    with pytest.raises(InputError, match=r"--num_devices=9999 is more than the number"):
        make_strategy("mirrored", 9999)


def test_bfloat16_state_is_rejected_on_several_workers(monkeypatch):
    one = make_strategy()
    check_state_dtype(one, "bfloat16")
    monkeypatch.setattr(strategies, "num_workers", lambda strategy: 2)
    check_state_dtype(one, "float32")
    with pytest.raises(
        InputError, match="--optimizer_state_dtype=bfloat16 cannot be combined with multi"
    ):
        check_state_dtype(one, "bfloat16")


def test_freed_variables_hold_no_memory(mirrored):
    with mirrored.scope():
        variable = keras.Variable(np.ones([3, 4], np.float32))
    free([variable])
    for copy in variable.value.values:
        assert tf.size(tf.raw_ops.ReadVariableOp(resource=copy.handle, dtype=tf.float32)) == 0


def test_autotune_is_disabled_to_avoid_a_wait_at_the_end():
    batches = distribute(tf.distribute.get_strategy(), tf.data.Dataset.range(3))
    assert batches.options().autotune.enabled is False
    assert [int(batch) for batch in batches] == [0, 1, 2]


# --- the peak rate and the memory of accelerators ---


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("TPU v5 lite", 197),
        ("NVIDIA GeForce GTX 1080", 0),
    ],
)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_peak_rate_follows_from_the_name_of_the_device(monkeypatch, backend, name, rate):
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    if backend == "jax":
        jax = pytest.importorskip("jax", reason="jax is not installed")
        monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=name)])
    else:
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [name])
        details = tf.config.experimental, "get_device_details"
        monkeypatch.setattr(*details, lambda gpu: {"device_name": gpu})
    assert peak_flops(0.0, 2) == 2e12 * rate
    assert peak_flops(7.0, 2) == 14e12


def test_peak_memory_is_that_of_the_fullest_device(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["GPU:0", "GPU:1"])
    memory = {"GPU:0": {"peak": 5}, "GPU:1": {"peak": 7}}
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", memory.get)
    assert peak_memory() == 7
    jax = pytest.importorskip("jax", reason="jax is not installed")
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    devices = [SimpleNamespace(memory_stats=lambda n=n: {"peak_bytes_in_use": n}) for n in (9, 8)]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert peak_memory() == 9
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: None)])
    assert peak_memory() is None
