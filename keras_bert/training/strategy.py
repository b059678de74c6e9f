"""Creates the tf.distribute.Strategy of a run, distributes its batches, selects its dtypes."""

import os
from collections.abc import Iterable
from pathlib import Path

import keras
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.training.cluster import join, num_workers, read_cluster

# Hardware with instructions for products of bfloat16: NVIDIA GPUs from Ampere on, and CPUs with one
# of these names in /proc/cpuinfo.
_BFLOAT16_CAPABILITY = (8, 0)
_BFLOAT16_INSTRUCTIONS = frozenset({"amx_bf16", "avx512_bf16"})


# --- devices ---


def make_strategy(
    name: str = "default",
    num_devices: int = 0,
    worker_timeout: float = 300.0,
    model_parallel: int = 1,
) -> tf.distribute.Strategy:
    """Creates the distribution strategy for the flags of a program (`Devices` in settings.py).

    Create models and optimizers in the `scope()` of the result. `tpu` was not tested on hardware.
    Variables are sharded only with JAX (jax_step.py).
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
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
    except ValueError as error:
        raise InputError(f"--distribution_strategy=tpu: found no TPU: {error}") from error
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def fastest_precision(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """Returns the default compute dtype: bfloat16 if the device multiplies it, else float32.

    A CPU multiplies bfloat16 if it has AMX or AVX512-BF16 in `cpu_info`; a GPU, from a compute
    capability of 8.0 on. GPUs were not measured. On TPUs, the default is float32. For CPUs,
    benchmarks/README.md has speeds, a loss curve, and scores of fine-tuning and of embeddings.
    """
    if tf.config.list_physical_devices("TPU"):
        return "float32"
    if gpus := tf.config.list_physical_devices("GPU"):
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        capabilities = [each.get("compute_capability", (0, 0)) for each in details]
        return "bfloat16" if min(capabilities) >= _BFLOAT16_CAPABILITY else "float32"
    try:
        instructions = set(cpu_info.read_text().split())
    except OSError:
        return "float32"
    return "bfloat16" if instructions & _BFLOAT16_INSTRUCTIONS else "float32"


def dtype_policy(mixed_precision: str) -> str:
    """Returns the name of the Keras dtype policy for a compute dtype and float32 variables."""
    return mixed_precision if mixed_precision == "float32" else f"mixed_{mixed_precision}"


def check_state_dtype(strategy: tf.distribute.Strategy, state_dtype: str) -> None:
    """Raises an InputError for bfloat16 state with several workers: TensorFlow cannot send it."""
    if state_dtype == "bfloat16" and num_workers(strategy) > 1:
        raise InputError(
            "--optimizer_state_dtype=bfloat16 cannot be combined with multi_worker_mirrored, "
            "because TensorFlow cannot send bfloat16 between workers; expected float32"
        )


def _devices(num_devices: int) -> list[str]:
    processors = max(2, os.cpu_count() or 1)
    if not tf.config.list_physical_devices("GPU") and num_devices > processors:
        raise InputError(
            f"--num_devices={num_devices} is more than the number of processors; expected at most "
            f"{processors}"
        )
    if not tf.config.list_physical_devices("GPU") and num_devices > 1:
        split_cpu(num_devices)
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if num_devices > len(names):
        raise InputError(
            f"--num_devices={num_devices}: found {len(names)} {kind} devices; expected at most "
            f"{len(names)}"
        )
    return names[: num_devices or len(names)]


def split_cpu(num_devices: int) -> None:
    """Splits the CPU into logical devices, unless it is already split or TensorFlow has started."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is not None:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(num_devices)]
        )
    except RuntimeError:  # TensorFlow has started; its devices can no longer change.
        return


def free(variables: Iterable[keras.Variable]) -> None:
    """Frees the memory of variables that are not used again.

    TensorFlow never releases a graph that was traced with a custom gradient, nor the variables that
    it references. Assigning an empty value to a variable frees its memory nevertheless.
    """
    for variable in variables:
        for copy in getattr(variable.value, "values", [variable.value]):
            nothing = tf.zeros([0], copy.dtype)
            tf.raw_ops.AssignVariableOp(resource=copy.handle, value=nothing)


# --- batches ---


def distribute(
    strategy: tf.distribute.Strategy, batches: tf.data.Dataset, *, endless: bool = False
) -> tf.distribute.DistributedDataset:
    """Creates a distributed dataset that gives each device its rows of each batch.

    Args:
        strategy: the strategy under which the model was created.
        batches: {name: [B / W, ...]}, this worker's rows of each global batch of B rows, for W
            workers. Each of the D devices of all workers gets [B / D, ...]. All workers must have
            the same number of batches.
        endless: whether the dataset is infinite. For a finite one, the workers agree before each
            batch that all of them have data left.
    """
    batches = without_autotuning(batches)
    workers = num_workers(strategy)
    if workers == 1:
        return strategy.experimental_distribute_dataset(batches)
    devices = strategy.num_replicas_in_sync // workers

    def split(batch: dict[str, tf.Tensor]) -> tf.data.Dataset:
        parts = {
            name: tf.reshape(value, [devices, -1, *tf.unstack(tf.shape(value)[1:])])
            for name, value in batch.items()
        }
        return tf.data.Dataset.from_tensor_slices(parts)

    shares = batches.flat_map(split) if devices > 1 else batches
    if endless:
        shares = shares.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return strategy.distribute_datasets_from_function(lambda _: shares)


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Disables tf.data autotuning, which can delay the end of an iterator by up to a minute.

    The autotuning thread may sleep past the end of the pipeline. Autotuning does not make the
    pipelines of this library faster.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
