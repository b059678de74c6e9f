"""Adds the losses of a teacher to the training of a task object with `keras.Model.fit`."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.models.head_inputs import HEAD_INPUTS, SOFT, StudentNetwork, TeacherNetwork
from keras_bert.tasks.fine_tuning.distillation import (
    TEACHER,
    Distillation,
    add_teacher_outputs,
    check_same_tokenizer,
)
from keras_bert.tasks.fitting import FitData, FitSettings
from keras_bert.tasks.running import ModelRunner
from keras_bert.tasks.soft_losses import SoftLoss, head_input_loss

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task


def with_teacher(
    student: "Task", teacher: "Task", data: FitData, settings: FitSettings
) -> tuple[keras.Model, FitData]:
    """Returns the model to train, and the data with the outputs and the losses of the teacher.

    `check_teacher` has to accept the teacher.
    """
    distillation = settings.distillation
    if not distillation.is_used:
        return student.prediction_model, data
    network, uses_states = teacher.prediction_model, distillation.hidden_state_weight > 0
    per_token = network.per_token
    if uses_states:
        distillation.check_memory(data.examples, network.config, per_token)
        network = TeacherNetwork(network)
    runner = ModelRunner(network, teacher.tokenizer)
    outputs = runner.run(data.examples, settings.batch_size, per_token)
    # The losses of the outputs of the student, and from which output of the teacher they are.
    losses = {
        SOFT + name: SoftLoss(data.soft_kind, distillation.temperature)
        for name in data.losses
        if distillation.distillation_weight
    }
    weights = dict.fromkeys(data.losses, 1.0 - distillation.distillation_weight)
    weights |= dict.fromkeys(losses, distillation.distillation_weight)
    if uses_states:
        losses[HEAD_INPUTS] = head_input_loss
        weights[HEAD_INPUTS] = distillation.hidden_state_weight

    def targets(batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        added = {name: batch[TEACHER + name.removeprefix(SOFT)] for name in losses}
        return data.targets(batch) | added

    changed = replace(
        data,
        examples=add_teacher_outputs(data.examples, outputs, per_token),
        targets=targets,
        losses={**data.losses, **losses},
        loss_weights=weights,
    )
    return StudentNetwork(student.prediction_model, [*losses]), changed


def check_options(options: Mapping[str, Any], teacher: "Task | None", has_teacher: bool) -> None:
    """Raises InputError if `fit` got options that apply to a teacher, but no teacher.

    `has_teacher` is whether the task can have one.
    """
    given = [field.name for field in fields(Distillation) if field.name in options]
    if given and teacher is None:
        remedy = "expected both" if has_teacher else "this task has no teacher"
        raise InputError(f"{given[0]}: has no effect without teacher; {remedy}")


def check_teacher(student: "Task", teacher: "Task", distillation: Distillation) -> None:
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
    own, other = ((task.problem_type_name, [*task.label_names]) for task in (student, teacher))
    if own != other:
        raise InputError(
            f"teacher has the labels {', '.join(other[1])[:200]} ({other[0]}), and the student "
            f"{', '.join(own[1])[:200]} ({own[0]}); expected the same labels in the same order"
        )
    length = student.settings.max_seq_length
    if length > config.max_position_embeddings:
        raise InputError(
            f"teacher has {config.max_position_embeddings} positions; expected at least the "
            f"student's max_seq_length={length}"
        )
    distillation.check_sizes(student.model.config, config, "teacher")
