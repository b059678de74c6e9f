"""Saves and reads best/, the model directory with the best weights of a run.

Its config.json also has the step of the weights, so weights and step are always replaced together.
"""

import dataclasses
from pathlib import Path

from keras_bert.checkpoints.model_directory import CONFIG, save_model_directory
from keras_bert.files import read_json, value_of
from keras_bert.tasks.loading import SETTINGS_KEY
from keras_bert.tasks.task import Task

_STEP = "best_step"  # the key of the step among the task's settings in config.json


def save_best(folder: Path, task_object: Task, step: int) -> None:
    """Saves a task object and the step of its weights in `folder`; replaces an earlier model."""
    description = task_object.describe()
    settings = {**description.extra.get(SETTINGS_KEY, {}), _STEP: step}
    extra = {**description.extra, SETTINGS_KEY: settings}
    save_model_directory(folder, task_object.model, dataclasses.replace(description, extra=extra))


def read_best_step(folder: Path) -> int | None:
    """Returns the step of the weights in `folder`.

    The result is None if the folder does not exist, or was saved by a version of this library that
    did not save the step.

    Raises:
        InputError: config.json cannot be read.
    """
    path = folder / CONFIG
    settings = read_json(path).get(SETTINGS_KEY) if path.is_file() else None
    return value_of(path, settings, _STEP, int, None) if isinstance(settings, dict) else None
