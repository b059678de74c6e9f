"""One training step with JAX: what training/step.py does, as one compiled program.

    batch {name: [B, ...]} -> weights -> forward, backward (x micro-batches) -> clip -> optimizer

Arrays are global: where a batch lies on several devices, a sum over it is a sum over all of them.
The weights and the optimizer's state go into the program and come out of it; the memory of those
that go in is used again for those that come out. Nothing here needs TensorFlow.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp

from keras_bert.optimization.clipping import clip_scale, global_norm
from keras_bert.training.jax_attention import fused_attention
from keras_bert.training.task import Batch, Task


def make_train_steps(
    strategy: Any,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    task: Task,
    *,
    gradient_accumulation_steps: int = 1,
    max_grad_norm: float = 1.0,
    jit_compile: bool = True,
) -> Callable[[Iterator[Batch], int], np.ndarray]:
    """Builds the function that runs training steps.

    Args:
        strategy: the devices; JAX finds on the arrays where they lie.
        model: the model that `task.sums` takes.
        optimizer: an optimizer built on the model's trainable variables.
        task: the sums to descend and to report.
        gradient_accumulation_steps: micro-batches that a batch is cut into.
        max_grad_norm: the global norm that gradients are clipped to.
        jit_compile: compile; without it each operation runs by itself.

    Returns:
        `train_steps(iterator, count)`: takes `count` global batches and returns the rows that
        training/step.py describes, float32 [count, 2F + 4].
    """
    trained, others = model.trainable_variables, model.non_trainable_variables
    slots = optimizer.variables

    def loss_and_sums(weights: list, fixed: list, batch: Batch, totals: dict[str, jax.Array]):
        mapping = [*zip(trained, weights, strict=True), *zip(others, fixed, strict=True)]
        with keras.StatelessScope(mapping), fused_attention(model.compute_dtype):
            sums = task.sums(model, batch, True)
        loss = sum(sums[name] / (totals[name] + e) for name, e in task.losses.items())
        return loss, jnp.stack([sums[name] for name in task.figures])

    def forward_backward(weights: list, fixed: list, batch: Batch, totals: dict[str, jax.Array]):
        differentiated = jax.value_and_grad(loss_and_sums, has_aux=True)
        (_, sums), gradients = differentiated(weights, fixed, batch, totals)
        return sums, gradients

    def accumulate(weights: list, fixed: list, batch: Batch, totals: dict[str, jax.Array]):
        steps = gradient_accumulation_steps
        if steps == 1:
            return forward_backward(weights, fixed, batch, totals)
        # Row r is of micro-batch r mod steps, so that each device keeps the rows it has.
        micro = {
            name: jnp.moveaxis(value.reshape(-1, steps, *value.shape[1:]), 1, 0)
            for name, value in batch.items()
        }
        # Those that are padding alone come last, and are not computed.
        count = jnp.sum(jnp.any(micro["example_weights"] > 0, axis=1))

        def add(i: Any, total: Any) -> Any:
            part = {name: value[i] for name, value in micro.items()}
            return jax.tree.map(jnp.add, total, forward_backward(weights, fixed, part, totals))

        zeros = (jnp.zeros([len(task.figures)]), [jnp.zeros_like(weight) for weight in weights])
        return jax.lax.fori_loop(0, count, add, zeros)

    def step(state: tuple[list, list], fixed: list, batch: Batch):
        weights, slot_values = state
        known = task.weights(batch)
        examples = batch["example_weights"]
        tokens = batch["input_mask"].astype(jnp.float32) * examples[:, None]
        sums, gradients = accumulate(weights, fixed, batch, known)
        norm = global_norm(gradients)
        scale = clip_scale(norm, max_grad_norm)
        mapping = [*zip(trained, weights, strict=True), *zip(slots, slot_values, strict=True)]
        with keras.StatelessScope(mapping) as scope:
            rate = keras.ops.convert_to_tensor(optimizer.learning_rate)
            for gradient, variable in zip(gradients, trained, strict=True):
                optimizer.update_step(gradient * scale, variable, rate)
            optimizer.iterations.assign_add(1)
        state = tuple([scope.get_current_value(v) for v in part] for part in (trained, slots))
        denominators = [known[name] for name in task.figures]
        counts = [jnp.sum(tokens), jnp.sum(examples)]
        return state, jnp.concatenate([sums, jnp.stack([*denominators, *counts, norm, rate])])

    if jit_compile:
        # Where each variable lies is where it stays; the state that went in is used up.
        places = tuple([v.value.sharding for v in part] for part in (trained, slots))
        step = jax.jit(step, donate_argnums=0, out_shardings=(places, None))

    def train_steps(iterator: Iterator[Batch], count: int) -> np.ndarray:
        state = tuple([v.value for v in part] for part in (trained, slots))
        fixed = [v.value for v in others]
        rows = []
        try:
            for _ in range(int(count)):
                state, row = step(state, fixed, next(iterator))
                rows.append(row)
        finally:  # What went in no longer exists.
            for part, values in zip((trained, slots), state, strict=True):
                for variable, value in zip(part, values, strict=True):
                    variable.assign(value)
        return np.stack([np.asarray(row) for row in rows])

    return train_steps
