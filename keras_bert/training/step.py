"""Builds the training step, which processes one global batch on all devices.

    batch {name: [B, ...]} -> denominators of the losses -> all-reduce
    -> forward, backward (x micro-batches) -> all-reduce -> clip -> optimizer

A loss is a weighted sum over labels, divided by the total weight of the labels in the global batch.
Label weights depend only on the data, so this denominator is known before the forward pass, and the
gradient of each micro-batch on each device is already its share of the global gradient. The shares
are added over micro-batches and devices, and their sum is clipped. In float16, the norm of the sum
determines whether all devices skip the step (optimization/optimizers.py).

Batches may differ in length; XLA compiles a program for each length. No gradient is computed below
the first trainable layer.
"""

import contextlib
from collections.abc import Callable

import tensorflow as tf

from keras_bert.optimization.optimizers import Direction, clip_scale
from keras_bert.training.cached_gradients import make_cached_gradients, split_micro_batches
from keras_bert.training.fusion import compiled, compiles_entire_step
from keras_bert.training.objective import Batch, StepMetrics, TrainState
from keras_bert.training.recomputation import recomputing
from keras_bert.training.run import TrainingSettings

SUM = tf.distribute.ReduceOp.SUM
# Gradients are summed over workers in packs of at least this size: while one pack is added, the
# next is transferred. A single pack takes twice the CPU time (benchmarks/README.md).
ALL_REDUCE_OPTIONS = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=4 * 2**20)


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
    fully_compiled = jit_compile and compiles_entire_step()

    def forward_backward(batch: Batch, totals: dict[str, tf.Tensor], scale: tf.Tensor):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in variables])
            recompute: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if training.gradient_checkpointing:
                recompute = recomputing(model, fully_compiled=fully_compiled)
            with recompute:
                sums = objective.sums(model, batch, True)
            scaled = objective.loss(sums, totals) * scale
        gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
        # Dense, because Keras optimizers would square the values of an IndexedSlices before they
        # sum the rows of a repeated token.
        return tf.stack([sums[name] for name in names]), [
            tf.convert_to_tensor(gradient) for gradient in gradients
        ]

    forward_backward = compiled(forward_backward, jit_compile)
    cached_gradients = make_cached_gradients(state, training) if objective.rows else None

    # XLA reads the weights and moments once; separate operations would read them a dozen times.
    @tf.function(jit_compile=jit_compile, autograph=False)
    def update(gradients: list[tf.Tensor], scale: tf.Tensor) -> tf.Tensor:
        rate = optimizer.learning_rate
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
        micro = split_micro_batches(batch, steps)
        # Micro-batches of only padding are not computed; they are the last ones (ramp.py).
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
        counts = [tf.reduce_sum(tokens), tf.reduce_sum(examples)]
        known = tf.stack([weights[name] for name in names] + counts)
        known = replica.all_reduce(SUM, known)
        totals = {name: known[i] for i, name in enumerate(names)}
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
        return tf.concat([sums, known, [scale, norm, rate]], axis=0)

    # AutoGraph would first convert all functions of the step, in about 2 s of CPU time.
    @tf.function(autograph=False)
    def train_steps(iterator, count: tf.Tensor) -> StepMetrics:
        def take_step(i: tf.Tensor, steps: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            metrics = strategy.run(replica_step, args=(next(iterator),))
            return i + 1, steps.write(i, strategy.experimental_local_results(metrics)[0])

        # One vector per step, which depends on all collectives of the step. With seven independent
        # arrays, the next step's all-reduce could start first, and the devices would deadlock.
        sizes = [len(names), len(names), 1, 1, 1, 1, 1]
        steps = tf.TensorArray(tf.float32, size=count, element_shape=[sum(sizes)])
        _, steps = tf.while_loop(lambda i, _: i < count, take_step, (tf.constant(0), steps))
        sums, weights, *scalars = tf.split(steps.stack(), sizes, axis=1)
        return StepMetrics(sums, weights, *[tf.squeeze(scalar, axis=1) for scalar in scalars])

    return train_steps


def _traced_once(direction_of: Direction) -> Direction:
    """Returns a function of variables and tensors that is traced once for each shape."""
    traced = tf.function(direction_of, autograph=False)
    return lambda *values: traced(*tf.nest.map_structure(tf.convert_to_tensor, values))
