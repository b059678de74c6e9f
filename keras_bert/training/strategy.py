"""Makes the tf.distribute.Strategy of a run, and chooses its types."""

import os
from pathlib import Path

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.training.cluster import join, num_workers, read_cluster

STRATEGIES = ("default", "mirrored", "multi_worker_mirrored", "tpu")


def make_strategy(
    name: str = "default",
    num_devices: int = 0,
    worker_timeout: float = 300.0,
    model_parallel: int = 1,
) -> tf.distribute.Strategy:
    """Makes the distribution strategy that a program's flags name.

    Args:
        name: `default` (one device), `mirrored` (the devices of this machine),
            `multi_worker_mirrored` (the devices of the machines in TF_CONFIG), or `tpu` (never run
            on hardware yet).
        num_devices: how many devices `mirrored` uses; 0 takes all of them: GPUs where there are
            any, else logical CPU devices.
        worker_timeout: seconds to wait for the other machines (cluster.py, `join`).
        model_parallel: 1, as variables are cut with JAX alone (jax_devices.py).

    Returns:
        The strategy; models and optimizers are made inside its `scope()`.

    Raises:
        InputError: an unknown name, devices that are not to be had, or a bad TF_CONFIG.
    """
    if model_parallel > 1:
        raise InputError(f"--model_parallel={model_parallel} needs KERAS_BACKEND=jax")
    if num_devices > 1 and name != "mirrored":
        raise InputError(
            f"--num_devices={num_devices} needs --distribution_strategy=mirrored, got {name}"
        )
    if name == "default":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(_devices(num_devices))
    if name == "multi_worker_mirrored":
        return join(read_cluster(), worker_timeout)
    if name == "tpu":
        try:
            resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
        except ValueError as error:
            raise InputError(f"--distribution_strategy=tpu: found no TPU: {error}") from error
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    raise InputError(
        f"--distribution_strategy={name!r} is not known; it must be one of {', '.join(STRATEGIES)}"
    )


def fastest_precision(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """Names the fastest compute type that was measured to keep the loss curve on this machine.

    Args:
        cpu_info: where the system lists what its processors can do.

    Returns:
        `bfloat16` on a CPU with bfloat16 matrix instructions (AMX), where a BERT-base step takes
        less than half of float32's time (benchmarks/README.md); else `float32`.
    """
    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        return "float32"
    try:
        return "bfloat16" if "amx_bf16" in cpu_info.read_text().split() else "float32"
    except OSError:
        return "float32"


def dtype_policy(mixed_precision: str) -> str:
    """Names the Keras dtype policy of a compute type; variables are float32 in all of them.

    Args:
        mixed_precision: `float32`, `bfloat16` or `float16`.

    Returns:
        What models take as their `dtype`.
    """
    return mixed_precision if mixed_precision == "float32" else f"mixed_{mixed_precision}"


def check_state_dtype(strategy: tf.distribute.Strategy, state_dtype: str) -> None:
    """Checks that an optimizer's state can be made under a strategy.

    Args:
        strategy: the devices.
        state_dtype: type of the optimizer's moments.

    Raises:
        InputError: several workers would have to send each other a bfloat16 variable's first
            value, which TensorFlow cannot.
    """
    if state_dtype == "bfloat16" and num_workers(strategy) > 1:
        raise InputError(
            "--optimizer_state_dtype=bfloat16 does not go with multi_worker_mirrored, as "
            "TensorFlow sends no bfloat16 between workers; expected float32"
        )


def _devices(num_devices: int) -> list[str]:
    processors = max(2, os.cpu_count() or 1)
    if not tf.config.list_physical_devices("GPU") and num_devices > processors:
        raise InputError(f"--num_devices={num_devices} is more than the {processors} processors")
    if not tf.config.list_physical_devices("GPU") and num_devices > 1:
        split_cpu(num_devices)
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if num_devices > len(names):
        raise InputError(
            f"--num_devices={num_devices} asks for more {kind} devices than the {len(names)} here"
        )
    return names[: num_devices or len(names)]


def split_cpu(num_devices: int) -> None:
    """Splits the CPU into logical devices, if TensorFlow has not started and none were made.

    Args:
        num_devices: how many logical devices the one physical CPU shall show.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is not None:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(num_devices)]
        )
    except RuntimeError:  # TensorFlow has started: the devices are what they are.
        return
