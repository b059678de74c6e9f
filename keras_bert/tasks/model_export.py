"""Exports a model directory, the model of a run, or that of another process."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.export.task_export import export_saved_model, weights_checksum
from keras_bert.export.version_folders import INFO, check_version, find_versions, next_version
from keras_bert.files import read_json
from keras_bert.tasks import CLASSES
from keras_bert.tasks.load import task_class
from keras_bert.tasks.settings import ExportOptions

_ALWAYS_USED = ("model_dir", "export_dir", "task", "format")


def export(options: ExportOptions) -> Path:
    """Exports a model, and returns the version folder."""
    export_dir = Path(options.export_dir)
    check_version(export_dir, "--export_dir")
    checkpoint = open_checkpoint(options.model_dir)
    checkpoint.require_vocab("a vocabulary is required because an export tokenizes text")
    checkpoint.check_bidirectional("an export")
    task = _task_of(options, checkpoint)
    check_unused(options, task)
    settings = task_settings(options, task, checkpoint)
    return (
        task_class(task)
        .from_checkpoint(checkpoint, **settings)
        .export(
            export_dir,
            options.format,
            compute_type=options.compute_type,
            int8=options.int8,
            engines=options.engines or (),
            examples=options.examples is not False,
        )
    )


def _task_of(options: ExportOptions, checkpoint: Checkpoint) -> str:
    """Returns the task of the option, or else that of the model's heads."""
    task = checkpoint.task
    if options.task in ("", task):
        if task is None:
            raise InputError(
                f"{checkpoint.path}: unknown model class {checkpoint.architecture}; expected "
                f"--task={'|'.join(CLASSES)}"
            )
        return task
    # The head weights of classifiers and taggers have the same names, so they would be loaded
    # without an error. Any model can be exported for embeddings, because it has an encoder.
    if task is not None and options.task != "embedding":
        raise InputError(
            f"--task={options.task}: {checkpoint.path} is a {checkpoint.architecture}; expected "
            f"--task={task}, or a model that was trained for {options.task}"
        )
    return options.task


def task_settings(options: ExportOptions, task: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the keyword arguments for `from_checkpoint` of the task's class.

    For a SavedModel, these are the options that are not None. An ONNX file takes token ids instead
    of texts: `max_seq_length` is the model's number of positions.
    """
    if options.format != "saved_model":
        longest = {"max_seq_length": checkpoint.config.max_position_embeddings}
        return longest | ({"max_query_length": 1} if task == "question_answering" else {})
    values = {name: getattr(options, name) for name in task_class(task).export_options}
    return {name: value for name, value in values.items() if value is not None}


def check_unused(options: ExportOptions, task: str) -> None:
    """Raises InputError for an option that is not None but that the task or format ignores."""
    used: tuple[str, ...] = ("int8",)
    if options.format == "saved_model":
        used = ("compute_type", *task_class(task).export_options, "engines", "int8", "examples")
    for name, value in asdict(options).items():
        if name not in (*_ALWAYS_USED, *used) and value is not None:
            raise InputError(
                f"--{name} has no effect with --task={task} --format={options.format}; expected "
                f"only {', '.join(f'--{name}' for name in used)}"
            )


def export_run(output_dir: Path, examples: bool | None = None) -> Path:
    """Exports the model/ of a run to its export/, and returns the folder of the newest version.

    A new version is written only if the model's weights differ from those of the newest version, or
    if that one contains training texts and `examples` is False.
    """
    model, folder = output_dir / "model", output_dir / "export"
    if not model.is_dir():
        raise InputError(
            f"{output_dir}: contains no model/; expected the folder of a run that trained a model"
        )
    versions = find_versions(folder)
    if versions:
        newest = versions[max(versions)]
        try:
            info = read_json(newest / INFO)
        except InputError:  # The version is not an export of this library.
            info = {}
        checksum = info.get("weights_sha256")
        has_other_texts = examples is False and "examples" in info
        if checksum is not None and checksum == weights_checksum(model) and not has_other_texts:
            return newest
    export_dir = str(folder / str(next_version(folder)))
    return export(ExportOptions(str(model), export_dir, examples=examples))


def export_saved_task(folder: str, export_dir: str) -> None:
    """Exports the task object that a process with another Keras backend saved in `folder`.

    The folder has model/, a model directory, and arguments.json, the arguments of
    `export_saved_model`. An error is printed, and the exit status is then 1.
    """
    arguments = read_json(Path(folder, "arguments.json"))
    try:
        checkpoint = open_checkpoint(Path(folder, "model"))
        task = task_class(arguments["info"]["task"]).from_checkpoint(checkpoint)
        export_saved_model(task, Path(export_dir), **arguments)
    except InputError as error:
        print(error)
        sys.exit(1)
