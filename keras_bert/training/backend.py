"""Provides the training step and the devices of the Keras backend.

Keras reads the environment variable KERAS_BACKEND when it is imported. The functions of all
backends are used in the same way. The step for torch is in this file.
"""

from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import keras
import numpy as np

from keras_bert.errors import InputError
from keras_bert.training.objective import Batch, StepMetrics, TrainingSettings, TrainState
from keras_bert.training.optimizers import clip_scale, global_norm

BACKEND = keras.backend.backend()


# --- torch ---


def _torch_train_steps(
    strategy: Any, state: TrainState, training: TrainingSettings
) -> Callable[[Iterator[Batch], int], StepMetrics]:
    """Builds the function that runs training steps, eagerly and on one device, for `fit`.

    The arithmetic is that of step.py, without micro-batches.
    """
    import torch  # An optional package.

    if training.gradient_accumulation_steps > 1:
        raise InputError(
            f"gradient_accumulation_steps={training.gradient_accumulation_steps}: expected 1 with "
            "KERAS_BACKEND=torch"
        )
    optimizer, objective, loss_scale = state.optimizer, state.objective, state.loss_scale
    names, variables = objective.metrics, state.model.trainable_variables

    def step(batch: Batch) -> list[np.ndarray]:
        weights = objective.weights(batch)
        scale = keras.ops.convert_to_tensor(loss_scale.scale if loss_scale else 1.0)
        state.model.zero_grad()
        sums = objective.sums(state.model, batch, True)
        (objective.loss(sums, weights) * scale).backward()
        with torch.no_grad():
            gradients = [
                torch.zeros_like(variable.value)
                if variable.value.grad is None
                else variable.value.grad
                for variable in variables
            ]
            norm, rate = global_norm(gradients) / scale, optimizer.learning_rate
            factor = clip_scale(norm, training.max_grad_norm) / scale
            if loss_scale:
                loss_scale.update(torch.isfinite(factor))
            if loss_scale is None or torch.isfinite(factor):
                for gradient, variable in zip(gradients, variables, strict=True):
                    optimizer.update_step(gradient * factor, variable, rate)
                optimizer.iterations.assign_add(1)
            examples = batch["example_weights"]
            tokens = keras.ops.cast(batch["input_mask"], "float32") * examples[:, None]
            rows = ([part[name] for name in names] for part in (sums, weights))
            metrics = (*rows, tokens.sum(), examples.sum(), 0.0, scale, norm, rate)
        return [np.array(keras.tree.map_structure(_number, part), np.float32) for part in metrics]

    def train_steps(iterator: Iterator[Batch], count: int) -> StepMetrics:
        steps = [step(_tensors(next(iterator))) for _ in range(int(count))]
        return StepMetrics(*map(np.stack, zip(*steps, strict=True)))

    return train_steps


def _tensors(batch: Batch) -> dict[str, Any]:
    return {name: keras.ops.convert_to_tensor(np.asarray(values)) for name, values in batch.items()}


def _number(value: Any) -> float:
    return float(keras.ops.convert_to_numpy(value))


# --- selection ---


if BACKEND == "tensorflow":
    from keras_bert.training.step import make_train_steps
    from keras_bert.training.strategy import fastest_precision, free, make_strategy
elif BACKEND == "jax":
    from keras_bert.training.jax_step import (
        fastest_precision,
        free,
        make_strategy,
        make_train_steps,
    )
else:  # Programs do not run with the torch backend, but task objects do.

    def _unsupported(*_: object, **__: object) -> NoReturn:
        raise InputError(
            f"KERAS_BACKEND={BACKEND}: training is not supported; expected tensorflow or jax"
        )

    make_train_steps = fastest_precision = free = make_strategy = _unsupported
    if BACKEND == "torch":
        make_train_steps = _torch_train_steps

__all__ = ["BACKEND", "fastest_precision", "free", "make_strategy", "make_train_steps"]
