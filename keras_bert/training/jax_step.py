"""Compiles the training step with JAX to one program, as step.py does with TensorFlow.

    batch {name: [B, ...]} -> denominators of the losses
    -> forward, backward (x micro-batches) -> clip -> optimizer

Arrays are global: a sum over a batch is the sum over all devices. The outputs of the program, the
new weights and optimizer state, reuse the memory of the old ones (donation). This module does not
need TensorFlow.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from keras_bert.models.layers.chain import compile_chains_with
from keras_bert.models.layers.recompute import recompute_with
from keras_bert.optimization.optimizers import clip_scale, global_norm
from keras_bert.training.jax_attention import fused_attention
from keras_bert.training.jax_rows import sorted_gradients
from keras_bert.training.objective import Batch, StepMetrics, TrainState
from keras_bert.training.run import TrainingSettings


def make_train_steps(
    strategy: Any, state: TrainState, training: TrainingSettings
) -> Callable[[Iterator[Batch], int], StepMetrics]:
    """Builds the function that runs training steps (see step.py); its metrics are NumPy arrays."""
    model, optimizer, objective = state.model, state.optimizer, state.objective
    loss_scale, names = state.loss_scale, objective.metrics
    trained, others = model.trainable_variables, model.non_trainable_variables
    slots, sharding = optimizer.variables, trained[0].value.sharding

    def loss_and_sums(weights: list, fixed: list, batch: Batch, totals: dict, scale: jax.Array):
        mapping = [*zip(trained, weights, strict=True), *zip(others, fixed, strict=True)]
        recompute = recompute_with(_recomputed) if training.gradient_checkpointing else None
        with (
            keras.StatelessScope(mapping),
            fused_attention(model, batch),
            compile_chains_with(_recomputed_chain)
            if recomputes_chains()
            else contextlib.nullcontext(),
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
        # Row r belongs to micro-batch r mod `steps`, so that rows need not move between devices.
        micro = {
            name: jnp.moveaxis(value.reshape(-1, steps, *value.shape[1:]), 1, 0)
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
        known = objective.weights(batch)
        examples = batch["example_weights"]
        tokens = batch["input_mask"].astype(jnp.float32) * examples[:, None]
        with keras.StatelessScope(zip(slots, slot_values, strict=True)):
            scale = keras.ops.convert_to_tensor(loss_scale.scale if loss_scale else 1.0)
        sums, gradients = accumulate(weights, fixed, batch, known, scale)
        norm = global_norm(gradients) / scale
        factor = clip_scale(norm, training.max_grad_norm) / scale
        if loss_scale:
            finite = jnp.isfinite(factor)
            with keras.StatelessScope(zip(slots, slot_values, strict=True)) as scope:
                loss_scale.update(finite)
            slot_values = _values_in(scope, slots)
        new_weights, new_slots, rate = updated(weights, slot_values, gradients, factor)
        if loss_scale:  # A step that overflowed is skipped.
            kept = (new_weights, new_slots), (weights, slot_values)
            new_weights, new_slots = jax.tree.map(
                lambda new, old: jnp.where(finite, new, old), *kept
            )
        denominators = jnp.stack([known[name] for name in names])
        counts = jnp.sum(tokens), jnp.sum(examples)
        metrics = StepMetrics(sums, denominators, *counts, scale, norm, rate)
        return (new_weights, new_slots), metrics

    places = tuple([v.value.sharding for v in part] for part in (trained, slots))
    if training.jit_compile:
        # Each variable keeps its sharding, and the memory of the previous state is reused.
        step = jax.jit(step, donate_argnums=0, out_shardings=(places, None))

    def train_steps(iterator: Iterator[Batch], count: int) -> StepMetrics:
        values = tuple([v.value for v in part] for part in (trained, slots))
        # Newly created arrays are not committed to a device, the results of the step are: without
        # this, the second step would be compiled again.
        values = jax.device_put(values, places)
        fixed = [v.value for v in others]
        steps = []
        try:
            for _ in range(int(count)):
                values, metrics = step(values, fixed, next(iterator))
                steps.append(metrics)
        finally:  # The variables' previous arrays were donated and no longer exist.
            for part, updates in zip((trained, slots), values, strict=True):
                for variable, value in zip(part, updates, strict=True):
                    variable.assign(value)
        return StepMetrics(*map(np.stack, zip(*jax.device_get(steps), strict=True)))

    return train_steps


def _recomputed(layer: keras.layers.Layer) -> Callable[..., jax.Array]:
    """Makes a layer keep only its inputs, and run again in the backward pass."""
    return jax.checkpoint(lambda *inputs: layer(*inputs))


def recomputes_chains() -> bool:
    """Returns whether chains run again in the backward pass, which costs CPUs a fifth more time."""
    return jax.devices()[0].platform != "cpu"


def _recomputed_chain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a chain keep only its inputs: the backward pass computes its intermediates again."""

    def call(*tensors: Any, **settings: Any) -> Any:
        arrays = jax.tree.map(keras.ops.convert_to_tensor, tensors)
        return jax.checkpoint(functools.partial(function, **settings))(*arrays)

    return call


def _values_in(scope: keras.StatelessScope, variables: list[keras.Variable]) -> list[jax.Array]:
    return [scope.get_current_value(variable) for variable in variables]
