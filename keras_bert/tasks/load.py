"""Opens a model directory or an export as the task object that it describes."""

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

# Task -> module and class of its object.
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
    """Opens a model.

    Args:
        path: whatever `from_pretrained` accepts, or the folder of an exported version.
        engine: what runs the network of an export: `tensorflow`.

    Returns:
        The task object that the model's heads are for, or that the export describes. One of an
        export predicts; its network cannot be trained.

    Raises:
        InputError: nothing that can be opened, a model whose heads are unknown, or an unknown
            engine.
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
            f"{source.checkpoint.path}: names no heads that are known "
            f"({source.checkpoint.architecture}); open it by the class of its task, such as "
            "keras_bert.TextClassifier.from_pretrained"
        )
    return open_task(task, source, {})


def open_task(task: str, source: Source, given: Mapping[str, Any]) -> Task:
    """Makes the object of a task.

    Args:
        task: its name in export.json.
        source: what it is loaded from.
        given: arguments of the class's `from_pretrained`.
    """
    return task_class(task).from_source(source, **given)


def task_class(task: str) -> type[Task]:
    """Returns the class of a task's objects."""
    module, name = _CLASSES[task]
    return getattr(importlib.import_module(module), name)


def _open_export(folder: Path) -> Task:
    """Opens the folder of an exported version."""
    info = read_json(folder / INFO)
    if info.get("format") != "saved_model" or info.get("task") not in _CLASSES:
        raise InputError(
            f"{folder / INFO}: task {info.get('task')!r} in format {info.get('format')!r}; "
            f"expected a saved_model of {', '.join(_CLASSES)}"
        )
    import tensorflow_text  # noqa: F401  Its operations are in the graph.

    loaded = tf.saved_model.load(str(folder))
    return task_class(info["task"]).from_export(info, loaded.signatures)
