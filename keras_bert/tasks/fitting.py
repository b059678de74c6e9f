"""Trains the model of a task object: `fit`, with the loop, steps and objectives of the programs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError
from keras_bert.tasks.examples import Batcher, Examples, make_predict_examples, steps_per_epoch
from keras_bert.tasks.prepared import Prepared
from keras_bert.tasks.settings import FineTuningSettings, FitSettings
from keras_bert.text.vocabulary import check_same_vocab
from keras_bert.training.backend import BACKEND, make_strategy, make_train_steps
from keras_bert.training.log import elapsed_time
from keras_bert.training.loop import BestWeights, plan_of, train_with_callbacks
from keras_bert.training.objective import (
    NO_OUTPUT,
    TEACHER,
    Objective,
    StepMetrics,
    TrainingSettings,
    TrainState,
)
from keras_bert.training.optimizers import LinearWarmupDecay, create_optimizer
from keras_bert.training.strategy import distribute, dtype_policy

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task


# 200 sentences of WNUT-17 with MiniLM: F1 of 5 after 21 steps, 43 after 105 at four times the rate.
_FEW_STEPS = 50


class Trainer(NamedTuple):
    """The training step of a `fit`, which the next `fit` uses again if it would be equal.

    Attributes:
        key: everything that the step depends on, besides the values of weights, batches and the
            schedule.
        schedule: the values of the schedule, variables with TensorFlow.
        train_steps: the step, as `make_train_steps` returns it.
    """

    key: tuple[Any, ...]
    schedule: Sequence[Any]
    state: TrainState
    train_steps: Callable[..., StepMetrics]


def compiles(settings: FitSettings) -> bool:
    """Returns whether to compile with XLA; the default is True only with JAX."""
    return BACKEND == "jax" if settings.jit_compile is None else settings.jit_compile


def fit_task(
    task: "Task",
    train: Prepared,
    objective: Objective,
    settings: FitSettings,
    evaluate: Callable[[], Mapping[str, float]] | None,
    callbacks: Sequence[keras.callbacks.Callback],
    best_metric: str,
    teacher: "Task | None" = None,
) -> keras.callbacks.History:
    """Trains the model of a task object and returns the history of the training.

    `evaluate` returns {metric: value} for the validation set; None if there is none. The value of
    `best_metric` is highest for the best weights.
    """
    if task.limit:
        task.report_truncation(train.truncated, f"training {task.items_name}")
    # The strategy for one device.
    strategy = make_strategy() if BACKEND == "jax" else tf.distribute.get_strategy()
    examples = train.examples
    pad_token_id, length = task.tokenizer.pad_token_id, task.settings.max_seq_length
    if not len(examples):
        raise InputError("fit() got no examples; expected at least one")
    if teacher is not None:
        rows = min(FineTuningSettings.eval_batch_size, settings.batch_size)
        batcher, name = Batcher(rows, pad_token_id, length), "teacher: batch_size"
        examples = label_examples(teacher, examples, batcher, strategy, compiles(settings), name)
    reinitialize(task, settings.seed)
    batcher = Batcher(
        settings.batch_size * examples.group_size,
        pad_token_id,
        length,
        settings.seed,
        settings.length_pool,
    )
    epoch_steps = steps_per_epoch(examples.num_groups, settings.batch_size)
    training = TrainingSettings(
        epoch_steps * settings.epochs,
        settings.batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        jit_compile=compiles(settings),
    )
    if settings.mixed_precision is not None:
        _set_precision(task, dtype_policy(settings.mixed_precision))
    model = task.prediction_model
    frozen = [*task.layers_without_loss]
    if settings.num_frozen_layers:
        frozen += [model.encoder.embeddings, *model.encoder.blocks[: settings.num_frozen_layers]]
    if settings.verbose:
        print(plan_of(training, examples.num_groups))
        warn_of_few_steps(training.num_train_steps, "epochs", "learning_rate")
    saved: dict[str, Any] = {}  # The best weights and their step.
    with _frozen(frozen):
        previous = task.trainer
        task.trainer = _make_trainer(task, objective, settings, training, strategy)
        compiles_step = task.trainer is not previous and BACKEND != "torch"
        state = task.trainer.state
        variables = model.trainable_variables

        def save(step: int) -> None:
            # Copies, because the next step may reuse the memory of the weights.
            weights = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
            saved.update(step=step, weights=weights)

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
            BestWeights(best_metric, save, lambda: saved.get("step"))
            if settings.restore_best
            else None,
            elapsed_time("Compiling the training step; the first step takes longer")
            if settings.verbose and compiles_step
            else None,
        )
        if saved:
            for variable, value in zip(variables, saved["weights"], strict=True):
                variable.assign(value)
    task.untrained, task.checkpoint, task.initial_values = (), None, {}
    task.shown = examples.shown
    return model.history


def _make_trainer(
    task: "Task",
    objective: Objective,
    settings: FitSettings,
    training: TrainingSettings,
    strategy: tf.distribute.Strategy,
) -> Trainer:
    """Creates the training step with a new optimizer; or returns that of the last `fit`, reset."""
    model, steps = task.model, training.num_train_steps
    warmup = int(steps * settings.warmup_proportion)
    schedule = LinearWarmupDecay(settings.learning_rate, steps, warmup)
    key = (
        objective,
        replace(training, num_train_steps=1),
        # The other settings do not change the step; the model has its precision.
        replace(
            settings,
            epochs=1,
            learning_rate=1.0,
            warmup_proportion=0.0,
            seed=0,
            verbose=0,
            validation_split=0.0,
            restore_best=False,
            mixed_precision=None,
        ),
        schedule.constants if BACKEND == "jax" else (),  # JAX compiles their values.
        model.dtype_policy.name,
        [*map(id, model.trainable_variables)],
        [*map(id, model.non_trainable_variables)],
        # Constants of the step that users can change.
        [getattr(layer, "rate", None) for layer in model._flatten_layers()],
    )
    if task.trainer and task.trainer.key == key:
        optimizer = task.trainer.state.optimizer
        for variable in optimizer.variables:
            variable.assign(keras.ops.zeros(variable.shape, variable.dtype))
        if BACKEND == "tensorflow":
            variables = task.trainer.schedule
            for variable, value in zip(variables, schedule.constants, strict=True):
                variable.assign(value)
            schedule.constants = variables
        optimizer.learning_rate = schedule
        return task.trainer
    optimizer, loss_scale = create_optimizer(
        model,
        settings.learning_rate,
        steps,
        warmup,
        weight_decay=settings.weight_decay,
        bias_correction=True,
        layer_decay=settings.layer_decay,
    )
    if BACKEND == "tensorflow":  # Variables, which the next `fit` can set in its compiled step.
        schedule.constants = [
            tf.Variable(value, dtype=tf.int64 if isinstance(value, int) else tf.float32)
            for value in schedule.constants
        ]
        optimizer.learning_rate = schedule
    if loss_scale:
        key = ()  # Its scale would have to be reset too.
    state = TrainState(model, optimizer, objective, loss_scale)
    return Trainer(key, schedule.constants, state, make_train_steps(strategy, state, training))


def warn_of_few_steps(steps: int, epochs_name: str, rate_name: str) -> None:
    """Warns if a training is short; the names are those of the options that help."""
    if steps < _FEW_STEPS:
        logging.warning(
            "%d steps are few; if the scores are low, use higher values of %s and %s",
            *(steps, epochs_name, rate_name),
        )


def _set_mode(callback: keras.callbacks.Callback) -> None:
    """Lets callbacks that compare a metric know that all metrics but losses improve upwards."""
    monitor = getattr(callback, "monitor", None)
    if isinstance(monitor, str) and getattr(callback, "mode", None) == "auto":
        callback.mode = "min" if monitor.endswith("loss") else "max"


def _set_precision(task: "Task", policy: str) -> None:
    """Sets the dtype policy of a model, as its constructor does."""
    model = task.model
    if model.dtype_policy.name == policy:
        return
    # Linear heads and the Dense modules of sentence-transformers compute in float32.
    linear = [getattr(model, head) for head in model.heads if head != "masked_lm"]
    linear += getattr(model, "dense", ())
    for layer in model._flatten_layers():
        if not any(layer is each for each in linear):
            layer.dtype_policy = policy
    for runner in ("_runner", "_scoring_runner"):  # They have compiled the model as it was.
        task.__dict__.pop(runner, None)


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
    batch_size_name: str = "--eval_batch_size",
) -> Examples:
    """Returns examples with the outputs of a teacher as labels."""
    network = teacher.prediction_model
    predict = make_predict_examples(
        strategy, network, batcher, jit_compile=jit_compile, batch_size_name=batch_size_name
    )
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


def check_teacher(student: "Task", teacher: "Task", where: str = "teacher") -> None:
    """Checks that a task object can be the teacher of another one, which may have no model yet."""
    expected = type(student).__name__
    if type(teacher) is not type(student):
        raise InputError(f"{where} is a {type(teacher).__name__}; expected a {expected}")
    if teacher.needs_labels or teacher.untrained:
        weights = ", ".join(teacher.untrained) or "no head"
        raise InputError(
            f"{where} has untrained weights: {weights}; expected a fine-tuned {expected}"
        )
    config = teacher.model.config  # Raises an error for an export, which has no tokenizer either.
    student_tokens, tokens = student.tokenizer, teacher.tokenizer
    check_same_vocab(
        (student_tokens.vocab, "student"), (tokens.vocab, where), users="student and teacher"
    )
    if student_tokens.settings != tokens.settings:
        raise InputError(
            f"{where}: its tokenizer has the settings {tokens.settings.to_dict()}, and that of the "
            f"student {student_tokens.settings.to_dict()}; expected the same settings"
        )
    labels, teacher_labels = (
        (task.problem_type_name, [*task.label_names]) for task in (student, teacher)
    )
    if labels != teacher_labels:
        raise InputError(
            f"{where} has the labels {', '.join(teacher_labels[1])[:200]} ({teacher_labels[0]}), "
            f"and the student {', '.join(labels[1])[:200]} ({labels[0]}); expected the same labels "
            "in the same order"
        )
    length = student.settings.max_seq_length
    if length > config.max_position_embeddings:
        raise InputError(
            f"{where} has {config.max_position_embeddings} positions; expected at least the "
            f"student's max_seq_length={length}"
        )
    if student.config.hidden_size > config.hidden_size:
        raise InputError(
            f"{where}: has hidden_size {config.hidden_size}, and the student "
            f"{student.config.hidden_size}; expected a teacher that is at least as wide as its "
            "student"
        )
