"""Devices of the JAX backend, with the interface of a tf.distribute strategy.

Data parallel: every device has all weights and a share of each batch. Model parallel: groups of
devices share the rows of the vocabulary, in the word embeddings and the masked-LM bias, with
their moments. Either way one program computes on global arrays, and XLA puts the communication
between devices into it; keras.distribution says where each variable lies.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from keras_bert.common.errors import InputError

if TYPE_CHECKING:
    import tensorflow as tf

# The variables with a row for each token of the vocabulary, by regular expressions on paths.
_BY_PIECE = {r".*embeddings/word_embeddings": ("model", None), r".*output_bias": ("model",)}


class JaxDevices:
    """The part of `tf.distribute.Strategy` that training and prediction use, for JAX.

    Args:
        devices: as `keras.distribution.list_devices` names them.
        model_parallel: devices that share the vocabulary; it divides their number.

    Attributes:
        num_replicas_in_sync: shares that a batch is cut into.
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
        """Returns the block in which models and optimizers are made."""
        return self._distribution.scope() if self._distribution else contextlib.nullcontext()

    def place(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Cuts a batch and puts the shares on their devices.

        Args:
            batch: {name: [B, ...]}; B divides by `num_replicas_in_sync`.

        Returns:
            The same as global arrays.
        """
        return jax.device_put(dict(batch), self._sharding)

    def experimental_distribute_dataset(
        self, dataset: "tf.data.Dataset"
    ) -> Iterator[dict[str, jax.Array]]:
        """Yields a dataset's batches on the devices.

        Args:
            dataset: global batches.
        """
        return map(self.place, dataset.as_numpy_iterator())


class _VocabularyParallel(keras.distribution.ModelParallel):
    """Shards variables with a row for each token of the vocabulary; replicates the others."""

    def __init__(self, mesh: keras.distribution.DeviceMesh):
        layouts = keras.distribution.LayoutMap(mesh)
        for path, axes in _BY_PIECE.items():
            layouts[path] = axes
        super().__init__(layout_map=layouts, batch_dim_name="batch")

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns where a variable lies, for Keras, which makes it.

        Args:
            variable: it has its path and its shape.

        Raises:
            InputError: the vocabulary does not divide.
        """
        layout = super().get_variable_layout(variable)
        count = self.device_mesh.shape[1]
        if "model" in layout.axes and variable.shape[0] % count:
            raise InputError(
                f"--model_parallel={count} does not divide the {variable.shape[0]} tokens of the "
                "vocabulary"
            )
        return layout


def make_strategy(
    name: str = "default",
    num_devices: int = 0,
    worker_timeout: float = 300.0,
    model_parallel: int = 1,
) -> JaxDevices:
    """Makes the devices that a program's flags name; TensorFlow, which reads data, gets no GPU.

    Args:
        name: `default` (one device), `mirrored` (the devices of this machine) or `tpu` (those of
            its TPU; never run on hardware yet).
        num_devices: how many devices `mirrored` uses; 0 takes all of them. A CPU is cut into so
            many.
        worker_timeout: not used, as there are no other machines.
        model_parallel: devices that share the vocabulary.

    Returns:
        The devices; models and optimizers are made inside their `scope()`.

    Raises:
        InputError: devices that are not to be had, or that do not divide.
    """
    import tensorflow as tf  # Late, as the step of JAX alone needs none.

    tf.config.set_visible_devices([], "GPU")
    if name == "multi_worker_mirrored":
        raise InputError(
            f"--distribution_strategy={name} needs KERAS_BACKEND=tensorflow, got jax; expected "
            "default, mirrored or tpu"
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
            f"--num_devices={num_devices} asks for more {kind} devices than the {len(found)} here"
        )
    devices = found[: num_devices or len(found)]
    if len(devices) % model_parallel:
        raise InputError(
            f"--model_parallel={model_parallel} does not divide the {len(devices)} devices"
        )
    return JaxDevices(devices, model_parallel)


def fastest_precision() -> str:
    """Names the fastest compute type that was measured to keep the loss curve with JAX.

    Returns:
        `float32`: on CPUs XLA's bfloat16 product is no faster, and no accelerator was measured.
    """
    return "float32"


def free(variables: Iterable[keras.Variable]) -> None:
    """Does nothing: JAX gives back the memory of variables when the last name of them goes.

    Args:
        variables: those of a model or an optimizer.
    """


def peak_memory() -> int | None:
    """Returns the most bytes that the first accelerator has held since the program began.

    Returns:
        The bytes; None on a CPU.
    """
    held = jax.devices()[0].memory_stats()
    return held and held["peak_bytes_in_use"]


def _split_cpu(num_devices: int) -> None:
    """Cuts the CPU into devices, if JAX has not started; where there are GPUs nothing changes."""
    processors = max(2, os.cpu_count() or 1)
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):  # JAX has started: the devices are what they are.
        jax.config.update("jax_num_cpu_devices", min(num_devices, processors))
