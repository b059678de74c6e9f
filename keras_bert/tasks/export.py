"""Exports a model directory, or the model of a run, for serving.

export_run -> export (settings, as the flags give them) -> open_task -> Task.export
"""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.export.task_export import export_saved_model, weights_checksum
from keras_bert.export.version_folders import INFO, check_version, find_versions, next_version
from keras_bert.files import read_json
from keras_bert.tasks.load import open_task
from keras_bert.tasks.settings import ExportOptions

# Task -> the settings that its SavedModel uses. An ONNX file converts token ids to logits and uses
# none of them.
_USED_SETTINGS = {
    "classification": ("max_seq_length", "pair"),
    "question_answering": (
        "max_seq_length",
        "max_query_length",
        "doc_stride",
        "n_best_size",
        "max_answer_length",
        "version_2_with_negative",
        "null_score_diff_threshold",
    ),
    "ner": ("max_seq_length",),
    "fill_mask": ("max_seq_length", "top_k"),
    "embedding": ("max_seq_length",),
}
TASKS = tuple(_USED_SETTINGS)
_ALWAYS_USED = ("model_dir", "export_dir", "task", "format")


@dataclass(frozen=True)
class ExportSettings(ExportOptions):
    """The settings of an export, and what follows from them for a model."""

    def task_of(self, checkpoint: Checkpoint) -> str:
        """Returns the task of the setting, or else that of the model's heads.

        Raises InputError if the heads are unknown, or belong to another task than the setting.
        """
        task = checkpoint.task
        if self.task in ("", task):
            if task is None:
                raise InputError(
                    f"{checkpoint.path}: unknown model class {checkpoint.architecture}; expected "
                    f"--task={'|'.join(TASKS)}"
                )
            return task
        # The head weights of classifiers and taggers have the same names, so they would be loaded
        # without an error. Any model can be exported for embeddings, because it has an encoder.
        if task is not None and self.task != "embedding":
            raise InputError(
                f"--task={self.task}: {checkpoint.path} is a {checkpoint.architecture}; expected "
                f"--task={task}, or a model that was trained for {self.task}"
            )
        return self.task

    def task_settings(self, task: str, checkpoint: Checkpoint) -> dict[str, Any]:
        """Returns the keyword arguments for `from_checkpoint` of the task's class.

        For a SavedModel, these are the settings that are not None. For an ONNX file, they set
        `max_seq_length` to the model's number of positions.
        """
        if self.format != "saved_model":  # An ONNX file takes token ids instead of texts.
            longest = {"max_seq_length": checkpoint.config.max_position_embeddings}
            return longest | ({"max_query_length": 1} if task == "question_answering" else {})
        values = {name: getattr(self, name) for name in _USED_SETTINGS[task]}
        return {name: value for name, value in values.items() if value is not None}

    def check_unused(self, task: str) -> None:
        """Raises InputError for a setting that is not None but that the task or format ignores."""
        used: tuple[str, ...] = ("int8",)
        if self.format == "saved_model":
            used = ("compute_type", *_USED_SETTINGS[task], "engines", "int8")
        for field in fields(self):
            if field.name in (*_ALWAYS_USED, *used) or getattr(self, field.name) is None:
                continue
            raise InputError(
                f"--{field.name} has no effect with --task={task} --format={self.format}; expected "
                f"only {', '.join(f'--{name}' for name in used)}"
            )


def export(settings: ExportSettings) -> Path:
    """Exports a model, and returns the version folder.

    Raises InputError if the model or a setting cannot be served, or the folder cannot be written.
    """
    export_dir = Path(settings.export_dir)
    check_version(export_dir)
    checkpoint = open_checkpoint(settings.model_dir)
    checkpoint.require_vocab("a vocabulary is required because an export tokenizes text")
    if checkpoint.config.is_decoder:
        raise InputError(
            f"{checkpoint.path}: is a left-to-right model (is_decoder), which cannot be "
            "exported; expected a bidirectional model"
        )
    task = settings.task_of(checkpoint)
    settings.check_unused(task)
    return open_task(task, checkpoint, **settings.task_settings(task, checkpoint)).export(
        export_dir,
        settings.format,
        compute_type=settings.compute_type,
        int8=settings.int8,
        engines=settings.engines or (),
    )


def export_run(output_dir: Path) -> Path:
    """Exports the model/ of a run to its export/, and returns the folder of the newest version.

    A new version is written only if the model's weights differ from those of the newest version.
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
            checksum = read_json(newest / INFO).get("weights_sha256")
        except InputError:  # The version is not an export of this library.
            checksum = None
        if checksum is not None and checksum == weights_checksum(model):
            return newest
    return export(ExportSettings(str(model), str(folder / str(next_version(folder)))))


def export_saved_task(folder: str, export_dir: str) -> None:
    """Exports the task object that a process with another Keras backend saved in `folder`.

    The folder has model/, a model directory, and arguments.json, the arguments of
    `export_saved_model`. An error is printed, and the exit status is then 1.
    """
    arguments = read_json(Path(folder, "arguments.json"))
    try:
        task = open_task(arguments["info"]["task"], open_checkpoint(Path(folder, "model")))
        export_saved_model(task, Path(export_dir), **arguments)
    except InputError as error:
        print(error)
        sys.exit(1)
