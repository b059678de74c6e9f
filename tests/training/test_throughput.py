"""The peak rate and the memory of accelerators, as TensorFlow and JAX report them."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from keras_bert.training.throughput import peak_flops, peak_memory


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("TPU v5 lite", 197),
        ("TPU v5p", 459),
        ("cpu", 0),
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


def test_peak_rate_of_a_cpu_is_unknown():
    assert peak_flops(0.0, 1) == 0
    assert peak_memory() is None


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
