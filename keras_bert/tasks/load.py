"""Loads a model directory or an export as a task object of the class for its task."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json
from keras_bert.serving.saved_model import INFO
from keras_bert.tasks.loading import TASK_OF, Source
from keras_bert.tasks.task import Task

ENGINES = ("tensorflow",)

# Task -> module and name of its class.
_CLASSES = {
    "classification": ("keras_bert.tasks.classification.text_classifier", "TextClassifier"),
    "question_answering": (
        "keras_bert.tasks.question_answering.question_answerer",
        "QuestionAnswerer",
    ),
    "ner": ("keras_bert.tasks.ner.entity_tagger", "EntityTagger"),
    "fill_mask": ("keras_bert.tasks.fill_mask.mask_filler", "MaskFiller"),
    "embedding": ("keras_bert.tasks.embedding.text_embedder", "TextEmbedder"),
}


def load(path: str | os.PathLike, engine: str = "tensorflow") -> Task:
    """Loads a model directory or an export as a task object, such as a `TextClassifier`.

    The files determine the class of the object. An object loaded from an export can predict, but
    cannot be trained.

    Args:
        path: any path that `from_pretrained` accepts, or the directory of an exported version.
        engine: the engine that runs the network of an export; only `tensorflow` is available.

    Raises:
        InputError: the path cannot be opened, the model has no head of a known task, or the engine
            is unknown.
    """
    if engine not in ENGINES:
        raise InputError(f"engine={engine!r}: expected one of {', '.join(ENGINES)}")
    folder = Path(path)
    if (folder / INFO).is_file():
        return _open_export(folder)
    source = Source.open(folder)
    task = TASK_OF.get(source.checkpoint.architecture)
    if task is None:
        raise InputError(
            f"{source.checkpoint.path}: has no known task head (architecture "
            f"{source.checkpoint.architecture}); load it with the class of its task, such as "
            "keras_bert.TextClassifier.from_pretrained"
        )
    return open_task(task, source, {})


def open_task(task: str, source: Source, given: Mapping[str, Any]) -> Task:
    """Creates a task object from a checkpoint; `given` are keyword arguments of `from_source`."""
    return task_class(task).from_source(source, **given)


def task_class(task: str) -> type[Task]:
    """Returns the class of a task, such as `TextClassifier` for `classification`."""
    module, name = _CLASSES[task]
    return getattr(importlib.import_module(module), name)


def _open_export(folder: Path) -> Task:
    info = read_json(folder / INFO)
    if info.get("format") != "saved_model" or info.get("task") not in _CLASSES:
        raise InputError(
            f"{folder / INFO}: found task {info.get('task')!r} and format {info.get('format')!r}; "
            f"expected one of the tasks {', '.join(_CLASSES)} and the format 'saved_model'"
        )
    import tensorflow_text  # noqa: F401  Its operations are in the graph.

    loaded = tf.saved_model.load(str(folder))
    return task_class(info["task"]).from_export(info, loaded.signatures)
