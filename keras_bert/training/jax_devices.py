"""Provides the devices of the JAX backend, with the interface of a tf.distribute strategy.

With data parallelism, every device has all weights and a share of each batch. With model
parallelism, groups of devices also shard the variables with one row per token of the vocabulary
(the word embeddings and the masked-LM bias) and their optimizer moments. One program computes on
global arrays, and XLA inserts the communication between devices.
"""

import contextlib
import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jaxlib
import keras
import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.training.bfloat16_hardware import COMPUTE_CAPABILITY, jax_compute_capability

if TYPE_CHECKING:
    import tensorflow as tf

# One of these paths exists if the kernel has NVIDIA's driver; the second, on Windows (WSL 2).
_DRIVERS = (Path("/proc/driver/nvidia"), Path("/dev/dxg"))
# Regular expressions for the paths of the variables with one row per token of the vocabulary.
_SHARDED_BY_VOCABULARY = {
    r".*embeddings/word_embeddings": ("model", None),
    r".*output_bias": ("model",),
}


class JaxDevices:
    """The part of `tf.distribute.Strategy` that training and prediction use, for JAX.

    Batches are split into `num_replicas_in_sync` shares.

    Args:
        devices: device names, as returned by `keras.distribution.list_devices`.
        model_parallel: the number of devices in each group that shards the vocabulary; must divide
            the number of devices.
    """

    def __init__(self, devices: Sequence[str], model_parallel: int = 1):
        self.num_replicas_in_sync = len(devices) // model_parallel
        self._distribution = None
        if model_parallel > 1:
            shape = (self.num_replicas_in_sync, model_parallel)
            mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), list(devices))
            self._distribution = _VocabularyParallel(mesh)
        elif len(devices) > 1:
            self._distribution = keras.distribution.DataParallel(devices=list(devices))
        if self._distribution:
            layout = self._distribution.get_data_layout((None,))
            self._sharding = layout.backend_layout
        else:
            self._sharding = jax.devices()[0]

    def scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which models and optimizers must be created."""
        return self._distribution.scope() if self._distribution else contextlib.nullcontext()

    def place(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Splits a batch {name: [B, ...]} over the devices; returns global arrays."""
        return jax.device_put(dict(batch), self._sharding)

    def experimental_distribute_dataset(
        self, dataset: "tf.data.Dataset"
    ) -> Iterator[dict[str, jax.Array]]:
        """Yields the global batches of a dataset as arrays split over the devices."""
        return map(self.place, dataset.as_numpy_iterator())


class _VocabularyParallel(keras.distribution.ModelParallel):
    """Shards the variables with one row per token of the vocabulary; replicates all others."""

    def __init__(self, mesh: keras.distribution.DeviceMesh):
        layouts = keras.distribution.LayoutMap(mesh)
        for path, axes in _SHARDED_BY_VOCABULARY.items():
            layouts[path] = axes
        super().__init__(layout_map=layouts, batch_dim_name="batch")

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the layout of a variable that Keras is about to create.

        Raises:
            InputError: the vocabulary cannot be divided equally among the devices of a group.
        """
        layout = super().get_variable_layout(variable)
        count = self.device_mesh.shape[1]
        if "model" in layout.axes and variable.shape[0] % count:
            raise InputError(
                f"--model_parallel={count}: expected a divisor of the vocabulary size, which is "
                f"{variable.shape[0]}"
            )
        return layout


def make_strategy(
    name: str = "default",
    num_devices: int = 0,
    worker_timeout: float = 300.0,
    model_parallel: int = 1,
) -> JaxDevices:
    """Selects the devices for the flags of a program, and hides GPUs from TensorFlow.

    The arguments are those of `make_strategy` in strategy.py, but `multi_worker_mirrored` is not
    supported, and `model_parallel` is the number of devices in each group that shards the
    vocabulary. Create models and optimizers in the `scope()` of the result; TensorFlow is used only
    for the input pipeline.

    Raises:
        InputError: the devices are not available, their number is not divisible by
            `model_parallel`, or the flags cannot be combined.
    """
    start_tensorflow()
    if name == "multi_worker_mirrored":
        raise InputError(
            f"--distribution_strategy={name}: not supported with KERAS_BACKEND=jax; expected "
            "default, mirrored or tpu, or KERAS_BACKEND=tensorflow"
        )
    for flag, count in (("num_devices", num_devices), ("model_parallel", model_parallel)):
        if count > 1 and name == "default":
            raise InputError(f"--{flag}={count} needs --distribution_strategy=mirrored, got {name}")
    if name == "default":
        return JaxDevices(keras.distribution.list_devices()[:1])
    if num_devices > 1:
        _split_cpu(num_devices)
    found = keras.distribution.list_devices()
    kind = jax.devices()[0].platform
    if name == "tpu" and kind != "tpu":
        raise InputError(f"--distribution_strategy=tpu: found no TPU: JAX has {kind} devices")
    if num_devices > len(found):
        raise InputError(
            f"--num_devices={num_devices}: found {len(found)} {kind} devices; expected at most "
            f"{len(found)}"
        )
    devices = found[: num_devices or len(found)]
    if len(devices) % model_parallel:
        raise InputError(
            f"--model_parallel={model_parallel}: expected a divisor of the number of devices, "
            f"which is {len(devices)}"
        )
    return JaxDevices(devices, model_parallel)


def fastest_precision() -> str:
    """Returns the default compute dtype: bfloat16 if all GPUs multiply it, else float32.

    On CPUs, the matrix products of JAX are no faster in bfloat16. GPUs and TPUs were not measured.
    """
    # Without a GPU, JAX must not start here: the CPU cannot be split into devices afterwards.
    if not _may_have_gpu():
        return "float32"
    return "bfloat16" if all(map(_multiplies_bfloat16, jax.devices())) else "float32"


def _may_have_gpu() -> bool:
    """Returns whether JAX may use a GPU, without starting JAX."""
    if jax.config.jax_platforms == "cpu" or not any(path.exists() for path in _DRIVERS):
        return False
    try:
        import jax_plugins  # A namespace package of JAX's plugins.
    except ImportError:
        return False
    return any("cuda" in module.name for module in pkgutil.iter_modules(jax_plugins.__path__))


def use_fast_atomics() -> None:
    """Starts JAX with an option without which some versions of jaxlib add slowly on GPUs.

    These versions add float32 values in a loop of compare-and-swap instructions (openxla/xla issue
    46225). Does nothing for other versions, without a GPU, or if XLA_FLAGS has such options.
    """
    is_affected = (0, 10, 2) <= jaxlib.version.__version_info__ <= (0, 11, 0)
    flags = os.environ.get("XLA_FLAGS", "")
    if not is_affected or "--xla_backend_extra_options" in flags or not _may_have_gpu():
        return
    option = "--xla_backend_extra_options=-nvptx-allow-ftz-atomics"
    os.environ["XLA_FLAGS"] = f"{flags} {option}".strip()
    with contextlib.suppress(RuntimeError):  # It is raised again when JAX is used.
        jax.devices()
    # TensorFlow, which reads XLA_FLAGS too, ends the process at an option of LLVM that it lacks.
    os.environ["XLA_FLAGS"] = flags


use_fast_atomics()


def _multiplies_bfloat16(device: jax.Device) -> bool:
    """Returns whether a device is a GPU with instructions for products of bfloat16 values."""
    capability = jax_compute_capability(device) if device.platform == "gpu" else None
    return capability is not None and capability >= COMPUTE_CAPABILITY


def free(variables: Iterable[keras.Variable]) -> None:
    """Does nothing: JAX frees an array when it is no longer referenced."""


def _split_cpu(num_devices: int) -> None:
    """Splits the CPU into several devices, unless JAX has started already; GPUs are unaffected."""
    processors = max(2, os.cpu_count() or 1)
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):  # JAX has started; its devices can no longer change.
        jax.config.update("jax_num_cpu_devices", min(num_devices, processors))
