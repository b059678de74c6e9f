"""Trains the model of a task object: `fit`, with the loop, steps and objectives of the programs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.tasks.examples import (
    Batcher,
    Examples,
    make_predict_examples,
    steps_per_epoch,
)
from keras_bert.tasks.losses import NO_OUTPUT, TEACHER
from keras_bert.tasks.settings import FitSettings
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import check_same_vocab
from keras_bert.training.backend import BACKEND, make_strategy, make_train_steps
from keras_bert.training.loop import train_with_callbacks
from keras_bert.training.objective import Objective, StepMetrics, TrainingSettings, TrainState
from keras_bert.training.optimizers import create_optimizer
from keras_bert.training.strategy import distribute

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task


class Trainer(NamedTuple):
    """The training step of a `fit`, which the next `fit` uses again if it would be equal.

    Attributes:
        key: everything that the step depends on, besides the values of weights and batches.
        state: what the step trains.
        train_steps: the step, as `make_train_steps` returns it.
    """

    key: tuple[Any, ...]
    state: TrainState
    train_steps: Callable[..., StepMetrics]


def compiles(settings: FitSettings) -> bool:
    """Returns whether to compile with XLA; the default is True only with JAX."""
    return BACKEND == "jax" if settings.jit_compile is None else settings.jit_compile


def fit(
    task: "Task",
    examples: Examples,
    objective: Objective,
    settings: FitSettings,
    evaluate: Callable[[], Mapping[str, float]] | None,
    callbacks: Sequence[keras.callbacks.Callback],
    micro_batches: int = 1,
) -> keras.callbacks.History:
    """Trains the model of a task object and returns the history of the training.

    `evaluate` returns {metric: value} for the validation set; None if there is none. A batch is
    computed in `micro_batches` parts.
    """
    strategy = one_device()
    batcher = Batcher(
        settings.batch_size * examples.group_size,
        task.tokenizer.pad_token_id,
        task.settings.max_seq_length,
        settings.seed,
        settings.length_pool,
    )
    epoch_steps = steps_per_epoch(examples.num_groups, settings.batch_size)
    training = TrainingSettings(
        epoch_steps * settings.epochs,
        settings.batch_size,
        gradient_accumulation_steps=micro_batches,
        jit_compile=compiles(settings),
    )
    model = task.prediction_model
    with _frozen(task.layers_without_loss):
        task.trainer = _make_trainer(task, objective, settings, training, strategy)
        state = task.trainer.state
        # Only the callbacks use what is compiled: they save, and show the learning rate.
        model.compile(optimizer=state.optimizer, auto_scale_loss=False)
        for callback in callbacks:
            _set_mode(callback)
        shown = keras.callbacks.CallbackList(
            list(callbacks),
            add_history=True,
            add_progbar=settings.verbose != 0,
            model=model,
            verbose=settings.verbose,
            epochs=settings.epochs,
            steps=epoch_steps,
        )
        dataset = task.training_batches(examples, batcher)
        train_with_callbacks(
            task.trainer.train_steps,
            distribute(strategy, dataset, endless=True),
            objective,
            epoch_steps,
            evaluate,
            shown,
        )
    return model.history


def _make_trainer(
    task: "Task",
    objective: Objective,
    settings: FitSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
) -> Trainer:
    """Creates the training step with a new optimizer; or returns that of the last `fit`, reset."""
    model = task.model
    key = (
        objective,
        training,
        replace(settings, seed=0, verbose=0),
        [*map(id, model.trainable_variables)],
        [*map(id, model.non_trainable_variables)],
        # Constants of the step that users can change.
        [getattr(layer, "rate", None) for layer in model._flatten_layers()],
    )
    if task.trainer and task.trainer.key == key:
        for variable in task.trainer.state.optimizer.variables:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))
        return task.trainer
    steps = training.num_train_steps
    optimizer, loss_scale = create_optimizer(
        model,
        settings.learning_rate,
        steps,
        int(steps * settings.warmup_proportion),
        weight_decay=settings.weight_decay,
        bias_correction=True,
    )
    if loss_scale:
        key = ()  # Its scale would have to be reset too.
    state = TrainState(model, optimizer, objective, loss_scale)
    return Trainer(key, state, make_train_steps(strategy, state, training))


def one_device() -> tf.distribute.Strategy:
    """Returns the strategy of `fit`."""
    return make_strategy() if BACKEND == "jax" else tf.distribute.get_strategy()


def _set_mode(callback: keras.callbacks.Callback) -> None:
    """Lets callbacks that compare a metric know that all metrics but losses improve upwards."""
    monitor = getattr(callback, "monitor", None)
    if isinstance(monitor, str) and getattr(callback, "mode", None) == "auto":
        callback.mode = "min" if monitor.endswith("loss") else "max"


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


def reinitialize(task: "Task", seed: int) -> None:
    """Draws new initial values for the weights that the checkpoint lacked, from a training seed.

    Weights that have changed since they were loaded keep their values.
    """
    model, initial_values = task.model, task.initial_values
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


# --- teacher ---
# The teacher runs once over the training examples, without dropout. Its outputs become labels of
# the examples, so that a step of training costs no more than without a teacher.


def label_examples(
    teacher: "Task",
    examples: Examples,
    batcher: Batcher,
    strategy: tf.distribute.Strategy,
    jit_compile: bool,
) -> Examples:
    """Returns examples with the outputs of a teacher as labels."""
    network = teacher.prediction_model
    predict = make_predict_examples(strategy, network, batcher, jit_compile=jit_compile)
    return add_teacher_outputs(examples, predict(examples), network.per_token)


def add_teacher_outputs(
    examples: Examples, outputs: Mapping[str, np.ndarray], per_token: bool
) -> Examples:
    """Adds the teacher's outputs for the examples to their labels, as "teacher_NAME".

    `outputs` is {NAME: [n, ...]} for n examples or, if `per_token`, {NAME: [T, ...]} for their T
    tokens. Tokens that are not labeled get NO_OUTPUT.
    """
    named = {TEACHER + name: values for name, values in outputs.items()}
    if not per_token:
        return replace(examples, labels={**examples.labels, **named})
    tags = examples.token_labels.get("tags")
    if tags is not None:
        for name, values in named.items():
            is_labeled = (tags >= 0).reshape(-1, *[1] * (values.ndim - 1))
            named[name] = np.where(is_labeled, values, NO_OUTPUT).astype(values.dtype)
    return replace(examples, token_labels={**examples.token_labels, **named})


def check_teacher(student: "Task", teacher: "Task") -> None:
    """Checks that a task object can be the teacher of another one.

    Raises:
        InputError: it is of another task, is not trained, or does not match the student.
    """
    expected = type(student).__name__
    if type(teacher) is not type(student):
        raise InputError(f"teacher is a {type(teacher).__name__}; expected a {expected}")
    config = teacher.model.config
    if teacher.untrained:
        raise InputError(
            f"teacher has untrained weights: {', '.join(teacher.untrained)}; expected a fine-tuned "
            f"{expected}"
        )
    names = ("student", "teacher")
    check_same_tokenizer(
        *(
            (task.tokenizer.vocab, task.tokenizer.settings, name)
            for name, task in zip(names, (student, teacher), strict=True)
        )
    )
    labels, teacher_labels = (
        (task.problem_type_name, [*task.label_names]) for task in (student, teacher)
    )
    if labels != teacher_labels:
        raise InputError(
            f"teacher has the labels {', '.join(teacher_labels[1])[:200]} ({teacher_labels[0]}), "
            f"and the student {', '.join(labels[1])[:200]} ({labels[0]}); expected the same labels "
            "in the same order"
        )
    length = student.settings.max_seq_length
    if length > config.max_position_embeddings:
        raise InputError(
            f"teacher has {config.max_position_embeddings} positions; expected at least the "
            f"student's max_seq_length={length}"
        )
    check_sizes(student.model.config, config, "teacher")


def check_sizes(student: BertConfig, teacher: BertConfig, where: str) -> None:
    """Rejects a student that is wider than its teacher; the error message starts with `where`."""
    if student.hidden_size > teacher.hidden_size:
        raise InputError(
            f"{where}: has hidden_size {teacher.hidden_size}, and the student "
            f"{student.hidden_size}; expected a teacher that is at least as wide as its student"
        )


def check_same_tokenizer(
    student: tuple[Sequence[str], TokenizerSettings, str],
    teacher: tuple[Sequence[str], TokenizerSettings, str],
) -> None:
    """Checks that student and teacher, (vocabulary, settings, name) each, have the same tokens.

    Raises:
        InputError: the vocabularies or the settings of the tokenizers differ.
    """
    (vocab, settings, path), (teacher_vocab, teacher_settings, where) = student, teacher
    check_same_vocab((vocab, path), (teacher_vocab, where), users="student and teacher")
    if settings != teacher_settings:
        raise InputError(
            f"{where}: its tokenizer has the settings {teacher_settings.to_dict()}, and that of "
            f"{path} {settings.to_dict()}; expected the same settings for student and teacher"
        )
