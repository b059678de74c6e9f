"""Defines the object that describes a fine-tuning run."""

from dataclasses import dataclass

from keras_bert.tasks.settings import Distillation, FineTuningSettings
from keras_bert.training.objective import TrainingRun


@dataclass(frozen=True, kw_only=True)
class FineTuningRun(TrainingRun):
    """A fine-tuning run without its task.

    If `training.num_train_steps` is 0, `settings.num_train_epochs` determines the number of steps.

    `teacher` is a fine-tuned model of the same task, any path that `open_checkpoint` accepts, from
    which the model learns as in `distillation`; without a teacher, they are "" and None.
    """

    settings: FineTuningSettings
    teacher: str = ""
    distillation: Distillation | None = None
