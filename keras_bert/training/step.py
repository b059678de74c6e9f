"""Builds the training step, which processes one global batch on all devices.

    batch {name: [B, ...]} -> denominators of the losses -> all-reduce
    -> forward, backward (x micro-batches) -> all-reduce -> clip -> optimizer

A loss is a weighted sum over labels, divided by the total weight of the labels in the global batch.
Label weights depend only on the data, so this denominator is known before the forward pass, and the
gradient of each micro-batch on each device is already its share of the global gradient. The shares
are added over micro-batches and devices, and their sum is clipped. In float16, the norm of the sum
determines whether all devices skip the step (`LossScale`).

Batches may differ in length; XLA compiles a program for each length. No gradient is computed below
the first trainable layer.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_bert.models.encoder import vector_size
from keras_bert.models.layers import add_to_sites, compile_chains_with, replace_blocks_with
from keras_bert.training.objective import (
    Batch,
    RowObjective,
    StepMetrics,
    TrainingSettings,
    TrainState,
    training_flops,
)
from keras_bert.training.optimizers import AdamWeightDecay, Direction, clip_scale

Totals = Mapping[str, tf.Tensor]  # {metric: denominator}

SUM = tf.distribute.ReduceOp.SUM
# Gradients are summed over workers in packs of at least this size: while one pack is added, the
# next is transferred. A single pack takes twice the CPU time (benchmarks/README.md).
ALL_REDUCE_OPTIONS = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=4 * 2**20)

# --- step ---


def make_train_steps(
    strategy: tf.distribute.Strategy, state: TrainState, training: TrainingSettings
) -> Callable[..., StepMetrics]:
    """Builds the compiled function that runs training steps.

    Returns:
        `train_steps(iterator, count)`, which trains on the next `count` global batches and returns
        the `StepMetrics` of these steps as tensors. With a loss scale, a step whose gradient is not
        finite changes nothing but the scale.
    """
    model, optimizer, objective = state.model, state.optimizer, state.objective
    loss_scale, jit_compile = state.loss_scale, training.jit_compile
    names, variables = objective.metrics, model.trainable_variables

    def forward_backward(batch: Batch, totals: dict[str, tf.Tensor], scale: tf.Tensor):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])
            with saving_memory(model, training):
                sums = objective.sums(model, batch, True)
            scaled = objective.loss(sums, totals) * scale
        gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
        # Dense, because Keras optimizers would square the values of an IndexedSlices before they
        # sum the rows of a repeated token.
        return tf.stack([sums[name] for name in names]), [
            tf.convert_to_tensor(gradient) for gradient in gradients
        ]

    forward_backward = compiled(forward_backward, jit_compile)
    compares_rows = isinstance(objective, RowObjective)
    cached_gradients = make_cached_gradients(state, training) if compares_rows else None

    # XLA reads the weights and moments once, and Adam's kernel a few times; separate operations
    # would read them a dozen times.
    is_adam = type(optimizer) is AdamWeightDecay and optimizer.state_dtype == "float32"
    uses_kernel = is_adam and not jit_compile

    @tf.function(jit_compile=jit_compile, autograph=False)
    def update(gradients: list[tf.Tensor], scale: tf.Tensor) -> tf.Tensor:
        rate = tf.convert_to_tensor(optimizer.learning_rate)
        if uses_kernel:
            apply_adam(optimizer, gradients, variables, scale, rate)
            return rate
        with optimizer.sharing_traces(_traced_once):
            for gradient, variable in zip(gradients, variables, strict=True):
                optimizer.update_step(gradient * scale, variable, rate)
        return rate

    def update_if_finite(gradients: list[tf.Tensor], scale: tf.Tensor):
        """Returns the learning rate, and the number of optimizer updates made, 1 or 0."""
        if loss_scale is None:
            return update(gradients, scale), 1
        finite = tf.math.is_finite(scale)
        loss_scale.update(finite)
        rate = tf.cond(
            finite,
            lambda: update(gradients, scale),
            lambda: tf.convert_to_tensor(optimizer.learning_rate),
        )
        return rate, tf.cast(finite, optimizer.iterations.dtype)

    def accumulate(batch: Batch, totals: dict[str, tf.Tensor], scale: tf.Tensor):
        steps = training.gradient_accumulation_steps
        if steps == 1:
            return forward_backward(batch, totals, scale)
        if cached_gradients:
            return cached_gradients(batch, totals, scale)
        micro = split_micro_batches(batch, steps, objective.rows_per_example)
        # Micro-batches of only padding are not computed; they are the last ones.
        filled = tf.reduce_any(micro["example_weights"] > 0, axis=0)
        count = tf.reduce_sum(tf.cast(filled, tf.int32))

        def add(i, sums, gradients):
            part = {name: value[:, i] for name, value in micro.items()}
            more_sums, more = forward_backward(part, totals, scale)
            return i + 1, sums + more_sums, [a + b for a, b in zip(gradients, more, strict=True)]

        zeros = [tf.zeros(variable.shape) for variable in variables]
        start = (tf.constant(0), tf.zeros([len(names)]), zeros)
        # One micro-batch at a time, so that the activations of only one are in memory.
        _, sums, gradients = tf.while_loop(
            lambda i, *_: i < count, add, start, parallel_iterations=1
        )
        return sums, gradients

    def replica_step(batch: Batch) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        weights = objective.weights(batch)
        examples = batch["example_weights"]
        tokens = tf.cast(batch["input_mask"], tf.float32) * examples[:, tf.newaxis]
        length = tf.cast(tf.shape(batch["input_mask"])[1], tf.float32)
        flops = tf.reduce_sum(examples) * training_flops(model, batch, length)
        counts = [tf.reduce_sum(tokens), tf.reduce_sum(examples), flops]
        totals_and_counts = tf.stack([weights[name] for name in names] + counts)
        totals_and_counts = replica.all_reduce(SUM, totals_and_counts)
        totals = {name: totals_and_counts[i] for i, name in enumerate(names)}
        scale = tf.convert_to_tensor(loss_scale.scale) if loss_scale else tf.constant(1.0)
        sums, gradients = accumulate(batch, totals, scale)
        sums = replica.all_reduce(SUM, sums)
        gradients = replica.all_reduce(SUM, gradients, ALL_REDUCE_OPTIONS)
        # Outside of XLA, which computes a norm in a single thread. l2_loss needs only one pass.
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])) / scale
        # Each device updates its own copy with the same gradient. `optimizer.apply` would sum over
        # the devices a second time; its clipping and weight averaging are not supported here.
        rate, taken = update_if_finite(gradients, clip_scale(norm, training.max_grad_norm) / scale)
        with tf.control_dependencies([rate]):
            optimizer.iterations.assign_add(taken)
        return tf.concat([sums, totals_and_counts, [scale, norm, rate]], axis=0)

    # AutoGraph would first convert all functions of the step, in about 2 s of CPU time.
    @tf.function(autograph=False)
    def train_steps(iterator, count: tf.Tensor) -> StepMetrics:
        def take_step(i: tf.Tensor, steps: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            metrics = strategy.run(replica_step, args=(next(iterator),))
            return i + 1, steps.write(i, strategy.experimental_local_results(metrics)[0])

        # One vector per step, which depends on all collectives of the step. With eight independent
        # arrays, the next step's all-reduce could start first, and the devices would deadlock.
        sizes = [len(names), len(names), 1, 1, 1, 1, 1, 1]
        steps = tf.TensorArray(tf.float32, size=count, element_shape=[sum(sizes)])
        _, steps = tf.while_loop(lambda i, _: i < count, take_step, (tf.constant(0), steps))
        sums, weights, *scalars = tf.split(steps.stack(), sizes, axis=1)
        return StepMetrics(sums, weights, *[tf.squeeze(scalar, axis=1) for scalar in scalars])

    return train_steps


def apply_adam(
    optimizer: AdamWeightDecay,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[keras.Variable],
    scale: tf.Tensor,
    learning_rate: tf.Tensor,
) -> None:
    """Does the same as `optimizer.update_step` of each variable, whose gradient is scaled first.

    For MiniLM on two cores, it takes 27 ms instead of 70 ms.
    """
    rate, epsilon, decay = optimizer.kernel_settings(learning_rate)
    for gradient, variable in zip(gradients, variables, strict=True):
        (m, v), decays, factor = optimizer.variable_settings(variable)
        if decays:
            variable.value.assign((1.0 - decay * factor) * variable.value)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.value.handle,
            m=m.value.handle,
            v=v.value.handle,
            beta1_power=0.0,  # Without the kernel's bias correction, which is part of `rate`.
            beta2_power=0.0,
            lr=rate * factor,
            beta1=optimizer.beta_1,
            beta2=optimizer.beta_2,
            epsilon=epsilon,
            grad=gradient * scale,
        )


def _traced_once(direction_of: Direction) -> Direction:
    """Returns a function of variables and tensors that is traced once for each shape."""
    traced = tf.function(direction_of, autograph=False)
    return lambda *values: traced(*tf.nest.map_structure(tf.convert_to_tensor, values))


# --- losses of a whole batch ---


def split_micro_batches(
    batch: Batch, count: int, rows_per_example: int = 1
) -> dict[str, tf.Tensor]:
    """Splits the rows of a batch: [B, ...] -> [B / count, count, ...].

    Example r of a device belongs to micro-batch r mod `count`, for any number of devices.
    """

    def split(value: tf.Tensor) -> tf.Tensor:
        shape = tf.unstack(tf.shape(value)[1:])
        if rows_per_example > 1:  # Exchange the second and the third axis.
            value = tf.reshape(value, [-1, count, rows_per_example, *shape])
            value = tf.transpose(value, [0, 2, 1, *range(3, 3 + len(shape))])
        return tf.reshape(value, [-1, count, *shape])

    return {name: split(value) for name, value in batch.items()}


def make_cached_gradients(
    state: TrainState, training: TrainingSettings
) -> Callable[[Batch, Totals, tf.Tensor], tuple[tf.Tensor, list[tf.Tensor]]]:
    """Creates the function that computes the gradient of a `RowObjective`.

        vectors of all micro-batches, without gradients -> loss of the whole batch
        -> gradient of the loss with respect to the vectors
        -> for each micro-batch: its vectors again, and the gradient through the model

    Only the activations of one micro-batch are in memory at a time (gradient caching, Gao et al.
    2021). Dropout masks depend on the seeds in the batch, so both passes have the same masks.

    Returns:
        A function of a batch, the denominators {metric: total} and the loss scale. It returns the
        numerators [F] of the objective's F metrics, and the gradients of the trainable variables.
    """
    model, objective, steps = state.model, state.objective, training.gradient_accumulation_steps
    variables = model.trainable_variables

    def forward(batch: Batch) -> tf.Tensor:
        return objective.vectors(model, batch, True)

    def loss_gradient(vectors: tf.Tensor, batch: Batch, totals: Totals, scale: tf.Tensor):
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            sums = objective.sums_of_vectors(vectors, batch)
            scaled = objective.loss(sums, totals) * scale
        return tf.stack([sums[name] for name in objective.metrics]), tape.gradient(scaled, vectors)

    def backward(batch: Batch, upstream: tf.Tensor) -> list[tf.Tensor]:
        weights = [variable.value for variable in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            with saving_memory(model, training):
                vectors = forward(batch)
        gradients = tape.gradient(vectors, weights, upstream, unconnected_gradients="zero")
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    run_forward, run_backward = (
        compiled(function, training.jit_compile) for function in (forward, backward)
    )
    loss_gradient = compiled(loss_gradient, training.jit_compile)

    def gradients(batch: Batch, totals: Totals, scale: tf.Tensor):
        micro = split_micro_batches(batch, steps)
        size, width = batch["example_weights"].shape[0] // steps, vector_size(model)

        def part(i: tf.Tensor) -> Batch:
            return {name: value[:, i] for name, value in micro.items()}

        def write(i: tf.Tensor, vectors: tf.TensorArray):
            return i + 1, vectors.write(i, run_forward(part(i)))

        # One micro-batch at a time, so that the activations of only one are in memory.
        def one_by_one(body: Callable[..., Any], start: Any) -> Any:
            return tf.while_loop(
                lambda i, _: i < steps, body, (tf.constant(0), start), parallel_iterations=1
            )[1]

        vectors = one_by_one(write, tf.TensorArray(tf.float32, steps, element_shape=[size, width]))
        by_row = tf.transpose(vectors.stack(), [1, 0, 2])
        sums, upstream = loss_gradient(tf.reshape(by_row, [-1, width]), batch, totals, scale)
        upstream = tf.transpose(tf.reshape(upstream, [-1, steps, width]), [1, 0, 2])

        def add(i: tf.Tensor, total: list[tf.Tensor]):
            more = run_backward(part(i), upstream[i])
            return i + 1, [a + b for a, b in zip(total, more, strict=True)]

        return sums, one_by_one(add, [tf.zeros(variable.shape) for variable in variables])

    return gradients


# --- gradient checkpointing ---


def saving_memory(
    model: keras.Model, training: TrainingSettings
) -> contextlib.AbstractContextManager[None]:
    """Returns the context `recomputing` if the settings request it, otherwise an empty one."""
    if not training.gradient_checkpointing:
        return contextlib.nullcontext()
    fully_compiled = training.jit_compile and compiles_entire_step()
    return recomputing(model, fully_compiled=fully_compiled)


@contextlib.contextmanager
def recomputing(model: keras.Model, *, fully_compiled: bool) -> Iterator[None]:
    """Returns a context in which a model's blocks keep only their inputs for the backward pass.

    Each block's custom gradient runs the block again and differentiates the second run. This run
    starts only when the gradient has reached the block, so the activations of only one block are in
    memory at a time. (tf.recompute_grad would read the weights from the layer, and accumulate their
    gradients in a copy at every call.)

    In this context, call the model under a gradient tape that already watches its variables.
    `fully_compiled` is whether XLA compiles the entire function that is traced, rather than only
    its chains.
    """
    # The weights are read outside of any layer: a mixed-precision layer would return them cast,
    # and the cast copies would be kept for the backward pass.
    values = {id(variable): tf.convert_to_tensor(variable.value) for variable in model.variables}

    def recompute(layer: keras.layers.Layer) -> Callable[..., tf.Tensor]:
        weights = [values[id(variable)] for variable in layer.variables]

        def call(*inputs: Any) -> tf.Tensor:
            is_present = [x is not None for x in inputs]
            run = _recomputed(layer, is_present, fully_compiled)
            return run(*[x for x in inputs if x is not None], *weights)

        return call

    with replace_blocks_with(recompute):
        yield


def _recomputed(
    layer: keras.layers.Layer, given: Sequence[bool], fully_compiled: bool
) -> Callable[..., tf.Tensor]:
    """Returns a function of the layer's inputs that are not None, followed by its weights.

    `given` has one value for each input of the layer: whether that input is not None.
    """
    count = sum(given)

    def forward(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        inputs = iter(tensors[:count])
        weights = zip(layer.variables, tensors[count:], strict=True)
        with keras.StatelessScope(list(weights)):
            return layer(*[next(inputs) if g else None for g in given])

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor | None]:
            again = _delay_until(upstream, tensors, fully_compiled)
            sources = [x for x in again if x.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(sources)
                result = forward(again)
            gradients = tape.gradient(result, sources, upstream, unconnected_gradients="zero")
            rest = iter(gradients)
            return [next(rest) if x.dtype.is_floating else None for x in tensors]

        return forward(tensors), gradient

    return run


def _delay_until(
    upstream: tf.Tensor, tensors: Sequence[tf.Tensor], fully_compiled: bool
) -> list[tf.Tensor]:
    """Returns the tensors so that they are available only after the upstream gradient.

    Otherwise the second run could start early, or a compiler could merge it with the first one.
    """
    # XLA ignores control dependencies, but it cannot simplify 0 * x, which is NaN for x = NaN.
    if fully_compiled:
        first, *rest = tensors
        nothing = 0.0 * tf.reshape(upstream, [-1])[0]
        return [first + tf.cast(nothing, first.dtype), *rest]
    with tf.control_dependencies([upstream]):
        return [tf.identity(x) for x in tensors]


# --- compilation ---


def compiled(function: Callable[..., Any], jit_compile: bool) -> Callable[..., Any]:
    """Compiles a forward pass, or a forward and backward pass, for this machine.

    `function` takes and returns structures of tensors. With `jit_compile`, XLA compiles the whole
    function on an accelerator, and only its chains on a CPU. Without `jit_compile`, the result is a
    tf.function that does not use XLA.

    A chain is a sequence of element-wise operations between matrix products (models/layers.py).
    TensorFlow makes one pass over memory for each operation; XLA fuses a chain into one pass. But
    XLA computes a bfloat16 matrix product on a CPU at float32 speed; oneDNN, which TensorFlow uses
    outside XLA, is four to five times as fast. On CPUs, only chains are therefore compiled. Each
    becomes two XLA computations: one forward, and one backward that recomputes the forward, so that
    only the tensors between chains are kept in memory. Measurements are in benchmarks/README.md.
    """
    compiles_chains = jit_compile and not compiles_entire_step()

    @functools.wraps(function)
    def prepared(*args: Any) -> Any:
        chains = compile_chains_with(compile_chain if compiles_chains else None)
        with sharing_a_trace(), chains:
            return function(*args)

    return tf.function(prepared, jit_compile=jit_compile and not compiles_chains, autograph=False)


# What the graph of a block depends on, apart from its weights.
_STATIC = ("config", "activation", "rate", "epsilon", "lora_alpha", "quantization_mode")


def sharing_a_trace() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which equal blocks of an encoder are traced only once.

    For MiniLM, this saves one of 5.5 CPU seconds before the first step.
    """
    traced: dict[Any, tuple[keras.layers.Layer, Callable[..., tf.Tensor]]] = {}

    def replacement(block: keras.layers.Layer) -> Callable[..., tf.Tensor]:
        # Not their `value`, which the layer that is being called casts in mixed precision.
        weights = [tf.convert_to_tensor(variable._value) for variable in block.variables]
        key = (
            *((*weight.shape, weight.dtype) for weight in weights),
            *(
                (type(layer), layer.dtype_policy.name, *(getattr(layer, n, None) for n in _STATIC))
                for layer in block._flatten_layers()
            ),
        )
        if key not in traced:
            traced[key] = block, tf.function(_with_weights(block), autograph=False)
        first, call = traced[key]
        site_offset = tf.constant(block.dropout_site - first.dropout_site)
        return lambda *inputs: call(inputs, site_offset, weights)

    return replace_blocks_with(replacement)


def _with_weights(block: keras.layers.Layer) -> Callable[..., tf.Tensor]:
    """Returns a function that calls a block with weights of another block.

    It also takes the difference between the numbers of their dropout sites.
    """

    def call(inputs: Sequence[Any], site_offset: tf.Tensor, weights: list[tf.Tensor]) -> tf.Tensor:
        values = zip(block.variables, weights, strict=True)
        with add_to_sites(site_offset), keras.StatelessScope([*values]):
            return block(*inputs)

    return call


def compiles_entire_step() -> bool:
    """Returns whether XLA compiles whole steps, which it does on GPUs and TPUs."""
    devices = tf.config.list_logical_devices
    return bool(devices("GPU") or devices("TPU"))


def compile_chain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles the function of a chain with XLA, for use with `compile_chains_with`.

    `function` takes tensors, None or NamedTuples of tensors by position and settings by keyword,
    and returns one tensor. The result takes the same arguments, and is differentiable with respect
    to the float tensors among them.
    """

    def call(*tensors: Any, **settings: Any) -> tf.Tensor:
        is_present = tf.nest.map_structure(lambda x: x is not None, tensors)
        run = _differentiable(function, is_present, tuple(sorted(settings.items())))
        return run(*[tf.convert_to_tensor(x) for x in tf.nest.flatten(tensors) if x is not None])

    return call


@functools.cache  # All layers share one compilation of each chain.
def _differentiable(
    function: Callable[..., Any], given: tuple[Any, ...], settings: tuple[tuple[str, Any], ...]
) -> Callable[..., tf.Tensor]:
    def plain(*tensors: tf.Tensor) -> tf.Tensor:
        rest = iter(tensors)
        arguments = tf.nest.map_structure(lambda g: next(rest) if g else None, given)
        return function(*arguments, **dict(settings))

    @tf.function(jit_compile=True, autograph=False)
    def backward(tensors: list[tf.Tensor], upstream: tf.Tensor) -> list[tf.Tensor]:
        sources = [x for x in tensors if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = plain(*tensors)
        return tape.gradient(result, sources, upstream, unconnected_gradients="zero")

    forward = tf.function(plain, jit_compile=True, autograph=False)

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        def gradient(upstream: tf.Tensor) -> list[tf.Tensor | None]:
            gradients = iter(backward(list(tensors), upstream))
            return [next(gradients) if x.dtype.is_floating else None for x in tensors]

        return forward(*tensors), gradient

    return run
