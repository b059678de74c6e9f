"""Defines how a student learns from a teacher, and adds the teacher's outputs to its examples.

The teacher runs once over the training examples, without dropout. Its outputs become labels of the
examples, so that a step of training costs no more than without a teacher.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.tasks.fine_tuning.examples import Examples
from keras_bert.tasks.soft_losses import MAX_TEMPERATURE, MIN_TEMPERATURE, NO_OUTPUT
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import check_same_vocab

TEACHER = "teacher_"  # Prefix of the labels that are outputs of the teacher.


@dataclasses.dataclass(frozen=True)
class Distillation:
    """How a student learns from a teacher; invalid values raise InputError.

    Attributes:
        distillation_weight: the share of the soft targets in the loss, from 0 to 1; the labels have
            the rest.
        temperature: divides the logits of both models in the loss of the soft targets.
    """

    distillation_weight: float = 0.9
    temperature: float = 1.0

    def __post_init__(self):
        weight, temperature = dataclasses.astuple(self)
        if not 0 <= weight <= 1:
            raise InputError(f"distillation_weight={weight}: expected a number from 0 to 1")
        if not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
            raise InputError(
                f"temperature={temperature}: expected a number from {MIN_TEMPERATURE:g} to "
                f"{MAX_TEMPERATURE:g}"
            )

    @property
    def is_used(self) -> bool:
        """Whether the loss depends on the teacher."""
        return self.distillation_weight > 0


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
