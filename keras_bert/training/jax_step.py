"""Compiles the training step with JAX to one program, as step.py does with TensorFlow.

    batch {name: [B, ...]} -> devices -> denominators of the losses
    -> forward, backward (x micro-batches) -> clip -> optimizer

Arrays are global: a sum over a batch is the sum over all devices. With data parallelism, every
device has all weights and a share of each batch. With model parallelism, groups of devices also
shard the variables with one row per token of the vocabulary (the word embeddings and the masked-LM
bias) and their optimizer moments. XLA inserts the communication between devices. The outputs of the
program, the new weights and optimizer state, reuse the memory of the old ones (donation).

This module does not need TensorFlow.
Shapes: B rows, S tokens, T tokens of a batch, V rows of a table, H hidden size.
"""

import contextlib
import functools
import os
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jaxlib
import keras
import numpy as np
from absl import logging
from jax import numpy as jnp
from jax.sharding import PartitionSpec

from keras_bert.errors import InputError
from keras_bert.models.layers import compile_chains_with, replace_blocks_with, take_rows_with
from keras_bert.startup import start_tensorflow
from keras_bert.training.jax_attention import compute_capability, fused_attention
from keras_bert.training.jax_kernels import kernel_of
from keras_bert.training.objective import (
    Batch,
    StepMetrics,
    TrainingSettings,
    TrainState,
    training_flops,
)
from keras_bert.training.optimizers import clip_scale, global_norm

if TYPE_CHECKING:
    import tensorflow as tf

# One of these paths exists if the kernel has NVIDIA's driver; the second, on Windows (WSL 2).
_DRIVERS = (Path("/proc/driver/nvidia"), Path("/dev/dxg"))
# Regular expressions for the paths of the variables with one row per token of the vocabulary.
_SHARDED_BY_VOCABULARY = {
    r".*embeddings/word_embeddings": ("model", None),
    r".*output_bias": ("model",),
}
# XLA would join two of the products of query, key and value, and then add their biases separately.
_COMPILER_OPTIONS = {"xla_gpu_dot_merger_threshold_mb": 0}
_CHUNK = 128  # The rows of an embedding gradient that one product adds.


# --- devices ---


class JaxDevices:
    """The part of `tf.distribute.Strategy` that training and prediction use, for JAX.

    Batches are split into `num_replicas_in_sync` shares. Each group of `model_parallel` devices,
    which must divide their number, shards the vocabulary.
    """

    def __init__(self, devices: Sequence[str], model_parallel: int = 1):
        self.num_devices, self.num_replicas_in_sync = len(devices), len(devices) // model_parallel
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
        """Returns the layout of a variable that Keras is about to create."""
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
    """
    start_tensorflow()
    if jax.config.jax_platforms != "cpu" and _DRIVERS[0].exists() and not _has_cuda_plugin():
        logging.log_first_n(
            logging.WARNING,
            "This machine has an NVIDIA GPU that JAX cannot use without CUDA; to install it, run "
            "pip install 'jax[cuda12]==%s'",
            1,
            jax.__version__,
        )
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
    devices = keras.distribution.list_devices()
    kind = jax.devices()[0].platform
    if name == "tpu" and kind != "tpu":
        raise InputError(f"--distribution_strategy=tpu: found no TPU: JAX has {kind} devices")
    if num_devices > len(devices):
        raise InputError(
            f"--num_devices={num_devices}: found {len(devices)} {kind} devices; expected at most "
            f"{len(devices)}"
        )
    devices = devices[: num_devices or len(devices)]
    if len(devices) % model_parallel:
        raise InputError(
            f"--model_parallel={model_parallel}: expected a divisor of the number of devices, "
            f"which is {len(devices)}"
        )
    return JaxDevices(devices, model_parallel)


def fastest_precision() -> str:
    """Returns the default compute dtype: bfloat16 if all GPUs multiply it, else float32.

    On CPUs, the matrix products of JAX are no faster in bfloat16. TPUs were not measured.
    """
    # Without a GPU, JAX must not start here: the CPU cannot be split into devices afterwards.
    if not _may_have_gpu():
        return "float32"
    return "bfloat16" if all(map(_multiplies_bfloat16, jax.devices())) else "float32"


def _may_have_gpu() -> bool:
    """Returns whether JAX may use a GPU, without starting JAX."""
    if jax.config.jax_platforms == "cpu" or not any(path.exists() for path in _DRIVERS):
        return False
    return _has_cuda_plugin()


def _has_cuda_plugin() -> bool:
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
    capability = compute_capability(device) if device.platform == "gpu" else None
    return capability is not None and capability >= (8, 0)  # As in strategy.py.


def free(variables: Iterable[keras.Variable]) -> None:
    """Does nothing: JAX frees an array when it is no longer referenced."""


def _split_cpu(num_devices: int) -> None:
    """Splits the CPU into several devices, unless JAX has started already; GPUs are unaffected."""
    processors = max(2, os.cpu_count() or 1)
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):  # JAX has started; its devices can no longer change.
        jax.config.update("jax_num_cpu_devices", min(num_devices, processors))


# --- step ---


def make_train_steps(
    strategy: Any, state: TrainState, training: TrainingSettings
) -> Callable[[Iterator[Batch], int], StepMetrics]:
    """Builds the function that runs training steps (see step.py).

    The function returns before the device has run them. Its metrics are tuples of n arrays, one per
    step; reading one waits for its step.
    """
    model, optimizer, objective = state.model, state.optimizer, state.objective
    loss_scale, names = state.loss_scale, objective.metrics
    trained, untrained = model.trainable_variables, model.non_trainable_variables
    slots, sharding = optimizer.variables, trained[0].value.sharding

    def loss_and_sums(weights: list, fixed: list, batch: Batch, totals: dict, scale: jax.Array):
        mapping = [*zip(trained, weights, strict=True), *zip(untrained, fixed, strict=True)]
        recompute = replace_blocks_with(_recomputed) if training.gradient_checkpointing else None
        with (
            keras.StatelessScope(mapping),
            fused_attention(model, batch, sharding),
            fused_chains(sharding),
            sorted_gradients(sharding),
            recompute or contextlib.nullcontext(),
        ):
            sums = objective.sums(model, batch, True)
        return objective.loss(sums, totals) * scale, jnp.stack([sums[name] for name in names])

    def forward_backward(weights: list, fixed: list, batch: Batch, totals: dict, scale: jax.Array):
        differentiated = jax.value_and_grad(loss_and_sums, has_aux=True)
        (_, sums), gradients = differentiated(weights, fixed, batch, totals, scale)
        return sums, gradients

    def accumulate(weights: list, fixed: list, batch: Batch, totals: dict, scale: jax.Array):
        steps = training.gradient_accumulation_steps
        if steps == 1:
            return forward_backward(weights, fixed, batch, totals, scale)
        # Example r belongs to micro-batch r mod `steps`, so that it need not move between devices.
        by_example = [-1, steps, objective.rows_per_example]
        micro = {
            name: jnp.moveaxis(value.reshape(*by_example, *value.shape[1:]), 1, 0).reshape(
                steps, -1, *value.shape[1:]
            )
            for name, value in batch.items()
        }
        # Micro-batches of only padding come last and are not computed.
        count = jnp.sum(jnp.any(micro["example_weights"] > 0, axis=1))

        def add(i: Any, total: Any) -> Any:
            part = {name: value[i] for name, value in micro.items()}
            more = forward_backward(weights, fixed, part, totals, scale)
            return jax.tree.map(jnp.add, total, more)

        zeros = (jnp.zeros([len(names)]), [jnp.zeros_like(weight) for weight in weights])
        return jax.lax.fori_loop(0, count, add, zeros)

    def updated(weights: list, slot_values: list, gradients: list, scale: jax.Array):
        """Returns the weights and optimizer state after the update, and the learning rate used."""
        mapping = [*zip(trained, weights, strict=True), *zip(slots, slot_values, strict=True)]
        with keras.StatelessScope(mapping) as scope:
            rate = keras.ops.convert_to_tensor(optimizer.learning_rate)
            for gradient, variable in zip(gradients, trained, strict=True):
                optimizer.update_step(gradient * scale, variable, rate)
            optimizer.iterations.assign_add(1)
        return _values_in(scope, trained), _values_in(scope, slots), rate

    def step(values: tuple[list, list], fixed: list, batch: Batch):
        weights, slot_values = values
        loss_weights = objective.weights(batch)
        examples = batch["example_weights"]
        tokens = batch["input_mask"].astype(jnp.float32) * examples[:, None]
        with keras.StatelessScope(zip(slots, slot_values, strict=True)):
            scale = keras.ops.convert_to_tensor(loss_scale.scale if loss_scale else 1.0)
        sums, gradients = accumulate(weights, fixed, batch, loss_weights, scale)
        norm = global_norm(gradients) / scale
        factor = clip_scale(norm, training.max_grad_norm) / scale
        if loss_scale:
            finite = jnp.isfinite(factor)
            with keras.StatelessScope(zip(slots, slot_values, strict=True)) as scope:
                loss_scale.update(finite)
            slot_values = _values_in(scope, slots)
        new_weights, new_slots, rate = updated(weights, slot_values, gradients, factor)
        if loss_scale:  # A step that overflowed is skipped.
            new_weights, new_slots = jax.tree.map(
                lambda new, old: jnp.where(finite, new, old),
                (new_weights, new_slots),
                (weights, slot_values),
            )
        denominators = jnp.stack([loss_weights[name] for name in names])
        flops = training_flops(model, batch, batch["input_mask"].shape[1])
        counts = jnp.sum(tokens), jnp.sum(examples), jnp.sum(examples) * flops
        metrics = StepMetrics(sums, denominators, *counts, scale, norm, rate)
        return (new_weights, new_slots), metrics

    places = tuple([v.value.sharding for v in part] for part in (trained, slots))
    if training.jit_compile:
        # Each variable keeps its sharding, and the memory of the previous state is reused.
        options = _COMPILER_OPTIONS if _multiplies_bfloat16(jax.devices()[0]) else None
        step = jax.jit(
            step, donate_argnums=0, out_shardings=(places, None), compiler_options=options
        )

    def train_steps(iterator: Iterator[Batch], count: int) -> StepMetrics:
        values = tuple([v.value for v in part] for part in (trained, slots))
        # Newly created arrays are not committed to a device, the results of the step are: without
        # this, the second step would be compiled again.
        if not all(value.committed for value in jax.tree.leaves(values)):
            values = jax.device_put(values, places)
        fixed = [v.value for v in untrained]
        steps = []
        try:
            for _ in range(int(count)):
                values, metrics = step(values, fixed, next(iterator))
                steps.append(metrics)
        finally:  # The variables' previous arrays were donated and no longer exist.
            for part, updates in zip((trained, slots), values, strict=True):
                for variable, value in zip(part, updates, strict=True):
                    variable.assign(value)
        for value in jax.tree.leaves(steps):
            value.copy_to_host_async()
        return StepMetrics(*zip(*steps, strict=True))

    return train_steps


def _recomputed(layer: keras.layers.Layer) -> Callable[..., jax.Array]:
    """Makes a layer keep only its inputs, and run again in the backward pass."""
    return jax.checkpoint(lambda *inputs: layer(*inputs))


def recomputes_chains() -> bool:
    """Returns whether chains run again in the backward pass, which costs CPUs a fifth more time."""
    return jax.devices()[0].platform != "cpu"


def fused_chains(sharding: Any) -> contextlib.AbstractContextManager:
    """Returns a context in which chains keep only their inputs, which the backward pass needs.

    NVIDIA GPUs run the kernels of jax_kernels.py where there is one. `sharding` is that of a
    variable.
    """
    if not recomputes_chains():
        return contextlib.nullcontext()
    has_kernels = _multiplies_bfloat16(jax.devices()[0])
    mesh = getattr(sharding, "mesh", None)

    def compile_chain(function: Callable[..., Any]) -> Callable[..., Any]:
        kernel = kernel_of(function, mesh) if has_kernels else None

        def call(*tensors: Any, **settings: Any) -> Any:
            result = kernel(*tensors, **settings) if kernel else None
            return _recomputed_chain(function)(*tensors, **settings) if result is None else result

        return call

    return compile_chains_with(compile_chain)


def _recomputed_chain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a chain keep only its inputs: the backward pass computes its intermediates again."""

    def call(*tensors: Any, **settings: Any) -> Any:
        arrays = jax.tree.map(keras.ops.convert_to_tensor, tensors)
        return jax.checkpoint(functools.partial(function, **settings))(*arrays)

    return call


def _values_in(scope: keras.StatelessScope, variables: list[keras.Variable]) -> list[jax.Array]:
    return [scope.get_current_value(variable) for variable in variables]


# --- embedding gradients ---


def sorted_gradients(sharding: Any) -> contextlib.AbstractContextManager:
    """Returns a context in which the gradients of embedding tables need no scatter.

    The default gradient adds one row after the other to the table, in no fixed order on GPUs, and
    waits wherever a token repeats ([MASK] is an eighth of all tokens). Here, the rows are sorted by
    token; matrix products then add the rows of one token, in an order that never changes.

    `sharding` is that of a variable. On several devices, each one adds the rows of its examples.
    """
    mesh = getattr(sharding, "mesh", None)

    def sum_rows(ids: jax.Array, rows: jax.Array, count: int) -> jax.Array:
        if mesh is None:
            return sum_by_id(ids, rows, count)

        def on_device(ids: jax.Array, rows: jax.Array) -> jax.Array:
            return jax.lax.psum(sum_by_id(ids, rows, count), "batch")

        examples = PartitionSpec("batch")
        return jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(examples, examples),
            out_specs=PartitionSpec(),
            check_vma=False,
        )(ids, rows)

    def take_rows(table: Any, ids: jax.Array) -> jax.Array:
        table = jnp.asarray(table)

        @jax.custom_vjp
        def take(table: jax.Array, ids: jax.Array) -> jax.Array:
            return jnp.take(table, ids, axis=0)

        def backward(ids: jax.Array, upstream: jax.Array) -> tuple[jax.Array, None]:
            return sum_rows(ids, upstream, len(table)), None

        take.defvjp(lambda table, ids: (take(table, ids), ids), backward)
        return take(table, ids)

    return take_rows_with(take_rows)


def sum_by_id(ids: jax.Array, rows: jax.Array, count: int) -> jax.Array:
    """Adds the rows of each id: row i of the result, [count, H], is the sum of the rows of id i.

    `rows` [..., H] has one row for each of the `ids` [...], which are int32 in [0, count).
    """
    ids, rows = ids.reshape(-1), rows.reshape(-1, rows.shape[-1])  # [T], [T, H]
    padding = -len(ids) % _CHUNK
    ids = jnp.pad(ids, (0, padding), constant_values=count)
    order = jnp.argsort(ids)
    ids = ids[order]
    rows = jnp.pad(rows, ((0, padding), (0, 0)))[order]

    # Within a chunk, each row becomes the sum of the chunk's rows with the same id.
    chunks = ids.reshape(-1, _CHUNK)
    same_id = chunks[:, :, None] == chunks[:, None, :]
    sums = _add(same_id, rows.reshape(-1, _CHUNK, rows.shape[-1]))
    # The first id of a chunk may have rows in earlier chunks: they are last there.
    first, last = chunks[:, 0], chunks[:, -1]
    continues = (first[:, None] == last[None, :]) & jnp.tri(len(chunks), k=-1, dtype=bool)
    carried = _add(continues, sums[:, -1])

    tokens = jnp.arange(count, dtype=ids.dtype)
    ends = jnp.searchsorted(ids, tokens, side="right", method="scan_unrolled") - 1
    # Otherwise, a compiler may search again for each of the H values of a row.
    ends = jax.lax.optimization_barrier(jnp.maximum(ends, 0))
    chunk = ends // _CHUNK
    total = sums.reshape(rows.shape)[ends]
    total += jnp.where((first[chunk] == tokens)[:, None], carried[chunk], 0.0)
    return jnp.where((ids[ends] == tokens)[:, None], total, 0.0)


def _add(selected: jax.Array, rows: jax.Array) -> jax.Array:
    """Adds the selected rows: bool [..., A, B] and [..., B, H] -> [..., A, H]."""
    return jnp.matmul(selected.astype(rows.dtype), rows, precision="highest")
