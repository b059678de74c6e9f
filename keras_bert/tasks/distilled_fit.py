"""Adds the losses of a teacher to the training of a task object with `keras.Model.fit`."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_bert.errors import InputError
from keras_bert.models.encoder import BertNetwork
from keras_bert.tasks.fine_tuning.distillation import (
    TEACHER,
    Distillation,
    add_teacher_outputs,
    check_same_tokenizer,
    check_sizes,
)
from keras_bert.tasks.fitting import FitData, FitSettings
from keras_bert.tasks.running import ModelRunner
from keras_bert.tasks.soft_losses import SoftLoss

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task

SOFT = "soft_"  # Prefix of the outputs that are compared with those of a teacher.


class StudentNetwork(keras.Model):
    """A network with additional outputs, so that `keras.Model.fit` can have one more loss on each.

    They are "soft_NAME", the same as the output NAME. The weights are those of the network.

    Args:
        network: a network with a head.
        additional: the names of the additional outputs to return.
    """

    def __init__(self, network: BertNetwork, additional: Sequence[str]):
        # Keras scales the loss of a model, and JAX selects its kernels, by the model's own policy.
        super().__init__(dtype=network.dtype_policy)
        self.network = network
        self.additional = [*additional]
        self.build((None, None))

    def build(self, input_shape: Any = None) -> None:
        """Does nothing; the network has created all variables."""

    def call(self, inputs: dict[str, Any], training: bool | None = False) -> dict[str, Any]:
        """Returns all outputs; for the inputs, see `BertEncoder.call`."""
        outputs = self.network(inputs, training=training)
        return outputs | {name: outputs[name.removeprefix(SOFT)] for name in self.additional}

    # Callbacks save and load the network itself.

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Saves the network without the additional outputs, as `keras.Model.save` does."""
        self.network.save(*args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """Saves the weights of the network, as `keras.Model.save_weights` does."""
        self.network.save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        """Loads the weights of the network, as `keras.Model.load_weights` does."""
        self.network.load_weights(*args, **kwargs)


def with_teacher(
    student: "Task", teacher: "Task", data: FitData, settings: FitSettings
) -> tuple[keras.Model, FitData]:
    """Returns the model to train, and the data with the outputs and the losses of the teacher.

    `check_teacher` has to accept the teacher.
    """
    distillation = settings.distillation
    if not distillation.is_used:
        return student.prediction_model, data
    network, per_token = teacher.prediction_model, teacher.prediction_model.per_token
    runner = ModelRunner(network, teacher.tokenizer)
    outputs = runner.run(data.examples, settings.batch_size, per_token)
    # The losses of the outputs of the student, and from which output of the teacher they are.
    losses = {
        SOFT + name: SoftLoss(data.soft_kind, distillation.temperature) for name in data.losses
    }
    weights = dict.fromkeys(data.losses, 1.0 - distillation.distillation_weight)
    weights |= dict.fromkeys(losses, distillation.distillation_weight)

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
    check_sizes(student.model.config, config, "teacher")
