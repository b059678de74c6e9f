"""Trains the model of a task object with `keras.Model.fit`."""

import contextlib
import functools
import itertools
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypedDict

import keras
import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.models.encoder import select_inputs
from keras_bert.tasks.defaults import DEFAULTS
from keras_bert.tasks.fine_tuning.batches import (
    BatchBuilder,
    BatchSettings,
    grouped_plan,
    steps_per_epoch,
)
from keras_bert.tasks.fine_tuning.distillation import Distillation
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.training.optimizers import AdamWeightDecay
from keras_bert.training.schedules import LinearWarmupDecay

Targets = Callable[[Mapping[str, np.ndarray]], dict[str, Any]]
_NUMBERS = (
    "learning_rate",
    "warmup_proportion",
    "weight_decay",
    "distillation_weight",
    "temperature",
)


class FitOptions(TypedDict, total=False):
    """The keyword arguments of `fit`, which are the fields of `FitSettings`."""

    epochs: int
    batch_size: int
    learning_rate: float
    warmup_proportion: float
    weight_decay: float
    seed: int
    length_pool: int
    verbose: str | int
    jit_compile: bool
    distillation_weight: float
    temperature: float


@dataclass(frozen=True)
class FitSettings:
    """Training settings of `fit`; the defaults are those of the task's program.

    | | epochs | batch_size | learning_rate | length_pool |
    | --- | --- | --- | --- | --- |
    | TextClassifier (`keras-bert classify`) | 3 | 32 | 5e-5 | 50 |
    | EntityTagger (`keras-bert ner`) | 3 | 32 | 5e-5 | 4 |
    | QuestionAnswerer (`keras-bert squad`) | 2 | 12 | 3e-5 | 4 |
    | TextEmbedder (`keras-bert embed`) | 1 | 64 | 2e-5 | 50 |
    | MaskFiller (`keras-bert adapt`) | 10 | 32 | 5e-5 | 50 |

    For all tasks, `warmup_proportion` is 0.1, `weight_decay` 0.01 and `seed` 12345.

    Attributes:
        epochs: number of passes over the examples.
        batch_size: number of examples per step.
        learning_rate: the peak learning rate, reached after warm-up; it then decays to 0.
        warmup_proportion: the fraction of the steps used for warm-up.
        weight_decay: AdamW's weight decay, not applied to LayerNorm weights and biases.
        seed: seed for newly initialized weights, the order of the examples and dropout masks.
        length_pool: number of batches whose examples are sorted by length together, so that less
            padding is needed; 1 for random batches.
        verbose: as in `keras.Model.fit`.
        jit_compile: whether to compile with XLA, once per batch length; None to compile only with
            the JAX backend.
        distillation_weight: with a teacher, the share of its outputs in the loss, from 0 to 1.
        temperature: with a teacher, divides the logits of both models.

    Raises:
        InputError: a value is out of range.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    warmup_proportion: float
    weight_decay: float
    seed: int
    length_pool: int
    verbose: str | int = "auto"
    jit_compile: bool | None = None
    distillation_weight: float = Distillation.distillation_weight
    temperature: float = Distillation.temperature

    def __post_init__(self):
        for name in ("epochs", "batch_size", "length_pool"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name}={value!r}: expected a whole number of at least 1")
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**32):
            raise InputError(f"seed={self.seed!r}: expected a whole number from 0 to 2**32 - 1")
        for name in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise InputError(f"{name}={value!r}: expected a number")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning_rate={self.learning_rate!r}: expected a number above 0")
        if not 0 <= self.warmup_proportion < 1:
            raise InputError(
                f"warmup_proportion={self.warmup_proportion!r}: expected at least 0 and below 1"
            )
        if not 0 <= self.weight_decay < math.inf:
            raise InputError(f"weight_decay={self.weight_decay!r}: expected at least 0")
        _ = self.distillation  # Raises an error for invalid values.

    @property
    def distillation(self) -> Distillation:
        """How the model learns from a teacher."""
        return Distillation(self.distillation_weight, self.temperature)

    @classmethod
    def of(cls, options: Mapping[str, Any], task: str) -> "FitSettings":
        """Creates the settings of a task from keyword arguments and the defaults of the task.

        Raises:
            InputError: an argument is unknown or out of range.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise InputError(
                f"fit() got unknown arguments {', '.join(unknown)}; expected any of "
                f"{', '.join(known)}"
            )
        return cls(**asdict(DEFAULTS[task]) | dict(options))


def fit_batches(examples: Examples, settings: BatchSettings, targets: Targets) -> tf.data.Dataset:
    """Creates an endless dataset of training batches (inputs, targets) for `keras.Model.fit`.

    There must be at least one example. `targets` maps a batch of NumPy arrays
    (fine_tuning/batches.py) to {output: targets}, and may modify the batch. The last batch of an
    epoch may be smaller than the others.
    """
    builder = BatchBuilder(examples, settings)
    chosen = grouped_plan(examples, settings)

    def batch_of(step: int) -> tuple[dict[str, np.ndarray], Any]:
        index, seeds = chosen(step)
        # JAX compiles a program for each shape: one for all partial batches if their length is the
        # same.
        is_partial = index[-1] < 0 and keras.config.backend() == "jax"
        batch = builder.build(index, seeds, examples.lengths.max() if is_partial else 0)
        real = batch["example_weights"] > 0
        batch = {name: values[real] for name, values in batch.items()}
        expected = targets(batch)
        return select_inputs(batch), expected

    # Batch size and length vary from batch to batch, but Keras' PyDataset would infer the shapes
    # of all batches from the first two.
    specs = tf.nest.map_structure(
        lambda value: tf.TensorSpec([None] * min(value.ndim, 2) + [*value.shape[2:]], value.dtype),
        batch_of(0),
    )
    return tf.data.Dataset.from_generator(
        lambda: map(batch_of, itertools.count()), output_signature=specs
    ).prefetch(2)


class Validation(keras.callbacks.Callback):
    """Adds the metrics of `evaluate` to the logs of each epoch as `val_NAME`."""

    def __init__(self, evaluate: Callable[[], Mapping[str, float]]):
        super().__init__()
        self._evaluate = evaluate

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluates and updates `logs`, so that the callbacks after this one see the metrics."""
        if logs is not None:
            logs |= {f"val_{name}": float(value) for name, value in self._evaluate().items()}


@dataclass(frozen=True)
class FitData:
    """The training data of `fit`, with losses and metrics.

    Attributes:
        targets: maps a batch of NumPy arrays to {output: targets}.
        losses: {output: loss function}.
        metrics: {output: metric functions}, reported during training.
        frozen: layers that no loss depends on; frozen because weight decay would shrink them.
        soft_kind: the kind of `SoftLoss` for the outputs of a teacher.
        loss_weights: {output: weight of its loss}; None for 1.
        network: the network to train; None for that of predictions.
    """

    examples: Examples
    targets: Targets
    losses: Mapping[str, Any]
    metrics: Mapping[str, Any]
    pad_token_id: int
    max_seq_length: int
    frozen: Sequence[keras.layers.Layer] = ()
    soft_kind: str = ""
    loss_weights: Mapping[str, float] | None = None
    network: keras.Model | None = None


@contextlib.contextmanager
def _frozen(layers: Sequence[keras.layers.Layer]) -> Iterator[None]:
    # `layer.trainable = True` would also make the variables trainable that LoRA has frozen.
    variables = [variable for layer in layers for variable in layer.variables]
    trainable = [variable.trainable for variable in variables]
    for variable in variables:
        variable.trainable = False
    try:
        yield
    finally:
        for variable, previous in zip(variables, trainable, strict=True):
            variable.trainable = previous


@dataclass
class _Step:
    """The compiled training step of JAX, and the configurations and variables it depends on."""

    function: Callable[..., Any]
    configs: Any
    variables: Sequence[keras.Variable]


@contextlib.contextmanager
def _compiled(model: keras.Model, **arguments: Any) -> Iterator[None]:
    """Calls `model.compile` for the block; with JAX, an equal training step is not compiled again.

    The step of JAX is a pure function, so a step that was compiled with an equal optimizer can be
    used with a new one. That of the last `fit` is kept in the model.
    """
    previous, variables = getattr(model, "_fit_step", None), model.trainable_variables
    configs = keras.tree.map_structure(
        lambda value: (type(value), value.get_config()) if hasattr(value, "get_config") else value,
        arguments,
    )
    # A constant of the step that users can change.
    configs["rates"] = [getattr(layer, "rate", None) for layer in model._flatten_layers()]
    model.compile(**arguments)
    if (
        previous
        and previous.configs == configs
        and [*map(id, previous.variables)] == [*map(id, variables)]
    ):
        model.train_function = previous.function
    elif keras.config.backend() == "jax":
        # For the method itself, which is equal in each `fit`, jax.jit would return the step of the
        # last `fit`, with its optimizer.
        model.train_step = functools.partial(type(model).train_step, model)
        model.make_train_function()
        del model.train_step
    yield
    if keras.config.backend() == "jax":
        model._fit_step = _Step(model.train_function, configs, variables)


def reinitialize(model: keras.Model, initial_values: Mapping[str, np.ndarray], seed: int) -> None:
    """Draws new initial values for the weights that the checkpoint lacks, from a training seed.

    `initial_values` maps the paths of these weights to their values after loading. Weights that
    have changed since then keep their values.
    """
    initializers = (
        keras.initializers.TruncatedNormal(
            0.0, model.config.initializer_range, seed=int(kernel_seed)
        )
        for kernel_seed in np.random.SeedSequence(seed).generate_state(len(initial_values))
    )
    variables = {variable.path: variable for variable in model.weights}
    for (path, value), initializer in zip(
        sorted(initial_values.items()), initializers, strict=True
    ):
        current = keras.ops.convert_to_numpy(variables[path]).astype(np.float32)
        # Weights with one dimension start as constants.
        if value.ndim > 1 and np.array_equal(current, value):
            variables[path].assign(initializer(variables[path].shape, "float32"))


def fit(
    model: keras.Model,
    data: FitData,
    settings: FitSettings,
    evaluate: Callable[[], Mapping[str, float]] | None,
    callbacks: Sequence[keras.callbacks.Callback],
) -> keras.callbacks.History:
    """Trains a model with `keras.Model.fit` and returns the history of the training.

    `evaluate` returns {metric: value} for the validation set; None if there is none.
    """
    batches = BatchSettings(
        settings.batch_size * data.examples.group_size,
        data.pad_token_id,
        data.max_seq_length,
        settings.seed,
        settings.length_pool,
    )
    dataset = fit_batches(data.examples, batches, data.targets)
    epoch_steps = steps_per_epoch(data.examples.num_groups, settings.batch_size)
    steps = epoch_steps * settings.epochs
    schedule = LinearWarmupDecay(
        settings.learning_rate, steps, int(steps * settings.warmup_proportion)
    )
    jit_compile = settings.jit_compile
    if jit_compile is None:  # With TensorFlow on a CPU, XLA would compile once per batch length.
        jit_compile = keras.config.backend() == "jax"
    validation = [Validation(evaluate)] if evaluate else []
    with (
        _frozen(data.frozen),
        _compiled(
            model,
            optimizer=AdamWeightDecay(
                schedule,
                weight_decay=settings.weight_decay,
                bias_correction=True,
                global_clipnorm=1.0,
            ),
            loss=dict(data.losses),
            loss_weights=dict(data.loss_weights) if data.loss_weights else None,
            metrics=dict(data.metrics),
            jit_compile=jit_compile,
        ),
    ):
        return model.fit(
            dataset,
            steps_per_epoch=epoch_steps,
            epochs=settings.epochs,
            shuffle=False,
            callbacks=[*validation, *callbacks],
            verbose=settings.verbose,
        )
