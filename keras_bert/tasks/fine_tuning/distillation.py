"""Defines how a student learns from a teacher, and adds the teacher's outputs to its examples.

The teacher runs once over the training examples, without dropout. Its outputs become labels of the
examples, so that a step of training costs no more than without a teacher.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.tasks.examples import Examples
from keras_bert.tasks.losses import NO_OUTPUT
from keras_bert.tasks.settings import Distillation
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import check_same_vocab

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task

TEACHER = "teacher_"  # Prefix of the labels that are outputs of the teacher.


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
    (vocab, own, path), (other_vocab, other, where) = student, teacher
    check_same_vocab((vocab, path), (other_vocab, where), users="student and teacher")
    if own != other:
        raise InputError(
            f"{where}: its tokenizer has the settings {other.to_dict()}, and that of {path} "
            f"{own.to_dict()}; expected the same settings for student and teacher"
        )


def add_teacher_outputs(
    examples: Examples, outputs: Mapping[str, np.ndarray], per_token: bool
) -> Examples:
    """Adds the teacher's outputs for the examples to their labels, as "teacher_NAME".

    `outputs` is {NAME: [n, ...]} for n examples or, if `per_token`, {NAME: [T, ...]} for their T
    tokens. Tokens that are not labeled get NO_OUTPUT.
    """
    named = {TEACHER + name: values for name, values in outputs.items()}
    if not per_token:
        return dataclasses.replace(examples, labels={**examples.labels, **named})
    tags = examples.token_labels.get("tags")
    if tags is not None:
        for name, values in named.items():
            is_labeled = (tags >= 0).reshape(-1, *[1] * (values.ndim - 1))
            named[name] = np.where(is_labeled, values, NO_OUTPUT).astype(values.dtype)
    return dataclasses.replace(examples, token_labels={**examples.token_labels, **named})


def teacher_outputs(batch: Mapping[str, object]) -> dict[str, object]:
    """Returns the teacher's outputs in a batch, {NAME: [B, ...]}."""
    return {
        name.removeprefix(TEACHER): values
        for name, values in batch.items()
        if name.startswith(TEACHER)
    }


def check_options(options: Mapping[str, Any], teacher: "Task | None", has_teacher: bool) -> None:
    """Raises InputError if `fit` got options that apply to a teacher, but no teacher.

    `has_teacher` is whether the task can have one.
    """
    options_of_teacher = [
        field.name for field in dataclasses.fields(Distillation) if field.name in options
    ]
    if options_of_teacher and teacher is None:
        remedy = "expected both" if has_teacher else "this task has no teacher"
        raise InputError(f"{options_of_teacher[0]}: has no effect without teacher; {remedy}")


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
