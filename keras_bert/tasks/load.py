"""Loads a model directory or an export as a task object."""

import importlib
import os
from pathlib import Path

import tensorflow as tf

from keras_bert.checkpoints.hub import local_model
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.checkpoints.sentence_transformers import read_modules
from keras_bert.errors import InputError
from keras_bert.export.engines import TENSORFLOW, Engine, check_engine
from keras_bert.export.version_folders import INFO
from keras_bert.files import read_json
from keras_bert.tasks import CLASSES
from keras_bert.tasks.task import Task


def load(path: str | os.PathLike, engine: str = "tensorflow", precision: str = "") -> Task:
    """Loads a model directory or an export as a task object, such as a `TextClassifier`.

    The files determine the class of the object. An object loaded from an export can predict, but
    cannot be trained.

    Args:
        path: any path that `from_pretrained` accepts, or the directory of an exported version.
        engine: the engine that runs the network of an export: `tensorflow`; or `onnxruntime` or
            `openvino`, for exports that were made with them.
        precision: the precision of the engine, `float32`, `bfloat16` or `int8`; empty for the
            compute type of the export.

    Raises:
        InputError: the path cannot be opened, the model has no head of a known task, or the engine
            is unknown.
    """
    check_engine(engine, precision)
    folder = local_model(path, hub_names=True)
    if (folder / INFO).is_file():
        return _open_export(folder, engine, precision)
    if engine not in ("", TENSORFLOW) or precision:
        raise InputError(
            f"{folder}: engine={engine!r}, precision={precision!r}: found a model directory; "
            "expected an exported version, or engine='tensorflow' without a precision"
        )
    checkpoint = open_checkpoint(folder)
    # The only module of a CrossEncoder is the Transformer.
    task = "embedding" if len(read_modules(checkpoint.path)) > 1 else checkpoint.task
    if task is None:
        raise InputError(
            f"{checkpoint.path}: has no known task head (architecture {checkpoint.architecture}); "
            "load it with the class of its task, such as keras_bert.TextClassifier.from_pretrained"
        )
    return task_class(task).from_checkpoint(checkpoint)


def task_class(task: str) -> type[Task]:
    """Returns the class of a task, such as `TextClassifier` for `classification`."""
    module, name = CLASSES[task]
    return getattr(importlib.import_module(module), name)


def _open_export(folder: Path, engine: str, precision: str) -> Task:
    info = read_json(folder / INFO)
    if info.get("format") != "saved_model" or info.get("task") not in CLASSES:
        raise InputError(
            f"{folder / INFO}: found task {info.get('task')!r} and format {info.get('format')!r}; "
            f"expected one of the tasks {', '.join(CLASSES)} and the format 'saved_model'"
        )
    import tensorflow_text  # noqa: F401  Its operations are in the graph.

    loaded = tf.saved_model.load(str(folder))
    cls = task_class(info["task"])
    opened = Engine(folder, loaded, info, engine, precision, cls.array_steps)
    task = cls.from_export(info, opened.functions)
    task.engine = opened
    return task
