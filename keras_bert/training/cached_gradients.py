"""Computes the exact gradient of a loss that depends on a whole batch, in micro-batches.

    vectors of all micro-batches, without gradients -> loss of the whole batch
    -> gradient of the loss with respect to the vectors
    -> for each micro-batch: its vectors again, and the gradient through the model

Only the activations of one micro-batch are in memory at a time (gradient caching, Gao et al. 2021).
Dropout masks depend on the seeds in the batch, so both passes have the same masks.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_bert.models.pooled_encoder import vector_size
from keras_bert.training.fusion import compiled, compiles_entire_step
from keras_bert.training.objective import Batch, TrainState
from keras_bert.training.recomputation import recomputing
from keras_bert.training.run import TrainingSettings

Totals = Mapping[str, tf.Tensor]


def split_micro_batches(batch: Batch, count: int) -> dict[str, tf.Tensor]:
    """Splits the rows of a batch: [B, ...] -> [B / count, count, ...].

    Row r of a device belongs to micro-batch r mod `count`, for any number of devices.
    """
    return {
        name: tf.reshape(value, [-1, count, *tf.unstack(tf.shape(value)[1:])])
        for name, value in batch.items()
    }


def make_cached_gradients(
    state: TrainState, training: TrainingSettings
) -> Callable[[Batch, Totals, tf.Tensor], tuple[tf.Tensor, list[tf.Tensor]]]:
    """Creates the function that computes the gradient of an objective with `rows`.

    Returns:
        A function of a batch, the denominators {metric: total} and the loss scale. It returns the
        numerators [F] of the objective's F metrics, and the gradients of the trainable variables.
    """
    model, objective, steps = state.model, state.objective, training.gradient_accumulation_steps
    rows, variables = objective.rows, model.trainable_variables
    fully_compiled = training.jit_compile and compiles_entire_step()

    def forward(batch: Batch) -> tf.Tensor:
        return rows.vectors(model, batch, True)

    def loss_gradient(vectors: tf.Tensor, batch: Batch, totals: Totals, scale: tf.Tensor):
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            sums = rows.sums(vectors, batch)
            scaled = objective.loss(sums, totals) * scale
        return tf.stack([sums[name] for name in objective.metrics]), tape.gradient(scaled, vectors)

    def backward(batch: Batch, upstream: tf.Tensor) -> list[tf.Tensor]:
        weights = [variable.value for variable in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            recompute: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if training.gradient_checkpointing:
                recompute = recomputing(model, fully_compiled=fully_compiled)
            with recompute:
                vectors = forward(batch)
        gradients = tape.gradient(vectors, weights, upstream, unconnected_gradients="zero")
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    run_forward, run_backward = (
        compiled(function, training.jit_compile) for function in (forward, backward)
    )
    loss_gradient = compiled(loss_gradient, training.jit_compile)

    def gradients(batch: Batch, totals: Totals, scale: tf.Tensor):
        micro = split_micro_batches(batch, steps)
        shape = [batch["example_weights"].shape[0] // steps, vector_size(model)]

        def part(i: tf.Tensor) -> Batch:
            return {name: value[:, i] for name, value in micro.items()}

        def loss_of(vectors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            by_row = tf.transpose(tf.reshape(vectors, [steps, *shape]), [1, 0, 2])
            sums, upstream = loss_gradient(tf.reshape(by_row, [-1, shape[1]]), batch, totals, scale)
            by_part = tf.transpose(tf.reshape(upstream, [-1, steps, shape[1]]), [1, 0, 2])
            return sums, tf.reshape(by_part, [-1, shape[1]])

        return in_micro_batches(
            tf.constant(steps),
            MicroBatches(
                lambda i: run_forward(part(i)),
                loss_of,
                lambda i, upstream: run_backward(part(i), upstream),
            ),
            shape,
            variables,
        )

    return gradients


class MicroBatches(NamedTuple):
    """The computations of a batch in micro-batches.

    Attributes:
        forward: maps the index of a micro-batch to its vectors, [r, H].
        loss: maps the vectors of all micro-batches, one micro-batch after the other, to any result
            and the gradient of the loss with respect to the vectors.
        backward: maps the index of a micro-batch, and the gradient with respect to its vectors, to
            the gradients of the variables.
    """

    forward: Callable[[tf.Tensor], tf.Tensor]
    loss: Callable[[tf.Tensor], tuple[Any, tf.Tensor]]
    backward: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]]


def in_micro_batches(
    count: tf.Tensor,
    micro_batches: MicroBatches,
    shape: Sequence[Any],
    variables: Sequence[keras.Variable],
) -> tuple[Any, list[tf.Tensor]]:
    """Returns the result of the loss, and the gradients of the variables.

    `shape` is [r, H], the shape of the vectors of all micro-batches but the last, which may have
    fewer rows if r is a tensor.
    """
    rows, width = shape

    def write(i: tf.Tensor, all_vectors: tf.TensorArray):
        return i + 1, all_vectors.write(i, micro_batches.forward(i))

    is_fixed = isinstance(rows, int)
    array = tf.TensorArray(
        tf.float32,
        count,
        element_shape=[rows if is_fixed else None, width],
        infer_shape=is_fixed,
    )
    # One micro-batch at a time, so that the activations of only one are in memory.
    _, array = tf.while_loop(
        lambda i, _: i < count, write, (tf.constant(0), array), parallel_iterations=1
    )
    result, upstream = micro_batches.loss(array.concat())

    def add(i: tf.Tensor, total: list[tf.Tensor]):
        more = micro_batches.backward(i, upstream[i * rows : (i + 1) * rows])
        return i + 1, [a + b for a, b in zip(total, more, strict=True)]

    zeros = [tf.zeros(variable.shape) for variable in variables]
    _, total = tf.while_loop(
        lambda i, _: i < count, add, (tf.constant(0), zeros), parallel_iterations=1
    )
    return result, total
