"""Writes a task object to a version folder, as a SavedModel or an ONNX file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging

from keras_bert.checkpoints.safetensors_file import WEIGHTS
from keras_bert.common.errors import InputError
from keras_bert.common.files import sha256
from keras_bert.serving.engines.spec import COMPUTE_TYPES, INT8_ENGINES, PRECISIONS
from keras_bert.serving.extras import require_packages
from keras_bert.serving.model_card import model_card, public_name
from keras_bert.serving.network import Network
from keras_bert.serving.saved_model import write_saved_model
from keras_bert.serving.served_task import ServedTask
from keras_bert.serving.version_folders import check_version

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task

FORMATS = ("saved_model", "onnx")
# Start of the paths of weights that a checkpoint may lack -> the output that is then not exported.
_OUTPUT_OF = {"encoder/pooler": "pooled_output", "next_sentence": "next_sentence_logits"}


@dataclass(frozen=True)
class ExportFormat:
    """The file format and dtypes of an export, as documented in `Task.export`.

    The constructor raises InputError for unknown values, and for options that the format does not
    have.
    """

    format: str = "saved_model"
    compute_type: str | None = None
    int8: bool = False
    engines: tuple[str, ...] = ()

    def __post_init__(self):
        if self.format not in FORMATS:
            raise InputError(f"format={self.format!r}: expected one of {', '.join(FORMATS)}")
        if self.compute_type not in (None, *COMPUTE_TYPES):
            raise InputError(
                f"compute_type={self.compute_type!r}: expected one of {', '.join(COMPUTE_TYPES)}"
            )
        unknown = [name for name in self.engines if name not in PRECISIONS]
        if unknown:
            raise InputError(
                f"engines={','.join(self.engines)}: found {unknown[0]!r}; expected some of "
                f"{', '.join(PRECISIONS)}"
            )
        if self.format != "saved_model":
            for name in ("compute_type", "engines"):
                if getattr(self, name):
                    raise InputError(
                        f"{name} has no effect with format={self.format!r}; expected no value"
                    )
        elif self.int8 and not set(self.engines) & set(INT8_ENGINES):
            raise InputError(
                f"int8 has no effect with format={self.format!r} without an engine that has int8; "
                f"expected engines={','.join(INT8_ENGINES)}"
            )


def export_task(task: "Task", export_dir: Path, export_format: ExportFormat) -> Path:
    """Exports a task object to DIR/<version>, which must not exist, and returns this folder.

    Raises InputError if some weights were never trained, a package that the format needs is not
    installed, or the folder cannot be written.
    """
    check_version(export_dir)
    _require_packages(export_format)
    config = task.model.config
    if task.untrained:
        where = f"{task.source.checkpoint.path}: " if task.source else ""
        raise InputError(
            f"{where}lacks the weights {', '.join(task.untrained)}; expected a model that was "
            f"trained for the task {task.task}"
        )
    reads_text = export_format.format == "saved_model"
    if getattr(task.model, "dense", ()) and not reads_text:
        raise InputError(
            f"format={export_format.format!r}: the model has Dense modules, which the format "
            "does not contain; expected format='saved_model'"
        )
    is_int8 = export_format.int8 and not reads_text  # A SavedModel has its int8 file beside it.
    compute_type = "int8" if is_int8 else export_format.compute_type or "float32"
    run = task.source.run if task.source else None
    settings, results = (run.settings, run.results) if run else ({}, {})
    info: dict[str, Any] = {
        "task": task.task,
        "model": public_name(task.source.checkpoint.path) if task.source else "a model in memory",
        "weights_sha256": weights_checksum(task.source.checkpoint.path) if task.source else None,
        "format": export_format.format,
        "compute_type": compute_type,
        "do_lower_case": task.tokenizer.do_lower_case,
        **task.tokenizer.settings.non_default(),
        **task.description(),
        **task.text_settings(),
    }

    def card(info: Mapping[str, object]) -> str:
        request = task.example_request() if reads_text else {}
        return model_card(info, config, settings, results, request)

    if reads_text:
        served = task.served(Network(task.model, compute_type))
        engines = _engine_writer(task, served, export_format)
        write_saved_model(served, export_dir, info, card, task.example_request(), engines)
    else:
        info["max_seq_length"] = config.max_position_embeddings  # No text is truncated to less.
        # Imported here, because only exports to ONNX need the package onnx.
        from keras_bert.serving.model_file import write_onnx_folder

        write_onnx_folder(
            task.model,
            task.tokenizer.vocab,
            export_dir,
            info,
            card,
            int8=export_format.int8,
            omitted_outputs=_omitted_outputs(task),
        )
    source = task.source.checkpoint.path if task.source else info["model"]
    logging.info("Exported %s to %s (task: %s)", source, export_dir, task.task)
    return export_dir


def _require_packages(export_format: ExportFormat) -> None:
    """Raises an InputError if a package that writes the format is not installed."""
    user = f"format={export_format.format!r}"
    if export_format.engines:
        user = f"engines={','.join(export_format.engines)}"
    elif export_format.format != "onnx":
        return
    require_packages(["onnx"], user)
    if export_format.int8:
        require_packages(["onnxruntime"], f"{user} with int8")


def _engine_writer(
    task: "Task", served: ServedTask, export_format: ExportFormat
) -> Callable[[Path], None] | None:
    """Returns a function that writes the files of the engines to a folder; None without engines."""
    if not export_format.engines:
        return None
    # Imported here, because only exports with engines need the package onnx.
    from keras_bert.serving.engines.graph import write_engine_files

    return lambda folder: write_engine_files(task.model, served.spec(), folder, export_format.int8)


def weights_checksum(path: Path) -> str | None:
    """Returns the SHA-256 of a model directory's model.safetensors; None without this file."""
    return sha256(path / WEIGHTS) if (path / WEIGHTS).is_file() else None


def _omitted_outputs(task: "Task") -> tuple[str, ...]:
    """Returns the names of outputs whose weights the checkpoint lacks; they are not exported."""
    absent = task.absent
    return tuple(
        output
        for prefix, output in _OUTPUT_OF.items()
        if prefix in task.optional_weights and any(path.startswith(prefix) for path in absent)
    )
