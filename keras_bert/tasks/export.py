"""Exports trained models for serving: a model directory, all models of a run, or a task object.

    export_run -> export (settings, as the flags give them) -> open_task -> export_task

`export_task` writes a version folder as a SavedModel or an ONNX file, with keras_bert.export.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import logging

from keras_bert.checkpoints.safetensors_file import WEIGHTS
from keras_bert.errors import InputError
from keras_bert.export.engines import (
    COMPUTE_TYPES,
    INT8_ENGINES,
    PRECISIONS,
    require_packages,
)
from keras_bert.export.model_card import model_card, public_name
from keras_bert.export.network import Network
from keras_bert.export.saved_model import write_saved_model
from keras_bert.export.version_folders import INFO, check_version, find_versions, next_version
from keras_bert.files import read_json, sha256
from keras_bert.tasks.load import open_task
from keras_bert.tasks.loading import TASK_OF, Source

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task

FORMATS = ("saved_model", "onnx")
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
    "embedding": ("max_seq_length", "normalize"),
}
TASKS = tuple(_USED_SETTINGS)
_ALWAYS_USED = ("model_dir", "export_dir", "task", "format")
# Start of the paths of weights that a checkpoint may lack -> the output that is then not exported.
_OUTPUT_OF = {"encoder/pooler": "pooled_output", "next_sentence": "next_sentence_logits"}


@dataclass(frozen=True)
class ExportSettings:
    """The model, task and format of an export, and the settings of its task.

    A setting of the task that is None gets the value that is stored with the model or its run, or
    else the task's default.

    Attributes:
        model_dir: a run's model/, the run's folder, or any checkpoint that `open_checkpoint` opens.
        export_dir: DIR/<version>, for TensorFlow Serving; must not exist.
        task: one of TASKS; if empty, the task of the model's heads.
        format: `saved_model` or `onnx`.
        int8: whether `onnx` stores weights as int8, or a SavedModel gets an int8 file for
            onnxruntime; None means False.
        engines: the engines besides TensorFlow that can run a SavedModel's network, from
            `onnxruntime` and `openvino`.
        compute_type: dtype of a SavedModel's matrix products, `float32` or `bfloat16`; None means
            `float32`.
        max_seq_length: maximum number of tokens in a text, pair or window.
        pair: whether a classifier takes two texts.
        normalize: whether embeddings are scaled to length 1; defaults to whether the model's
            modules.json (sentence-transformers) contains a Normalize module.
        top_k: number of tokens to return for each mask; defaults to 5.

    The other settings are those of a `QuestionAnswerer`; see `AnswerSettings`.
    """

    model_dir: str
    export_dir: str
    task: str = ""
    format: str = "saved_model"
    int8: bool | None = None
    compute_type: str | None = None
    engines: tuple[str, ...] | None = None
    max_seq_length: int | None = None
    pair: bool | None = None
    normalize: bool | None = None
    top_k: int | None = None
    max_query_length: int | None = None
    doc_stride: int | None = None
    n_best_size: int | None = None
    max_answer_length: int | None = None
    version_2_with_negative: bool | None = None
    null_score_diff_threshold: float | None = None

    def task_of(self, source: Source) -> str:
        """Returns the given task, or else the task of the model's heads.

        Raises InputError if the heads are unknown, or belong to another task than the given one.
        """
        checkpoint = source.checkpoint
        task = TASK_OF.get(checkpoint.architecture)
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

    def given(self, task: str, source: Source) -> dict[str, Any]:
        """Returns the keyword arguments for `from_source` of the task's class.

        For a SavedModel, these are the settings that are not None. For an ONNX file, they set
        `max_seq_length` to the model's number of positions.
        """
        if self.format != "saved_model":  # An ONNX file takes token ids instead of texts.
            longest = {"max_seq_length": source.checkpoint.config.max_position_embeddings}
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
    source = _open(Path(settings.model_dir))
    task = settings.task_of(source)
    settings.check_unused(task)
    return open_task(task, source, settings.given(task, source)).export(
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


def _open(path: Path) -> Source:
    """Opens a model and checks that it has a vocabulary and bidirectional attention."""
    source = Source.open(path)
    checkpoint = source.checkpoint
    if checkpoint.vocab is None:
        raise InputError(
            f"{checkpoint.why_no_vocab}; a vocabulary is required because an export tokenizes text"
        )
    if checkpoint.config.is_decoder:
        raise InputError(
            f"{checkpoint.path}: is a left-to-right model (is_decoder), which cannot be "
            "exported; expected a bidirectional model"
        )
    return source


def export_task(
    task: "Task",
    export_dir: Path,
    format: str,
    *,
    compute_type: str | None = None,
    int8: bool = False,
    engines: Sequence[str] = (),
) -> Path:
    """Exports a task object to DIR/<version>, which must not exist, and returns this folder.

    The arguments are those of `Task.export`. Raises InputError if an argument is unknown or does
    not apply to the format, some weights were never trained, a package that the format needs is not
    installed, or the folder cannot be written.
    """
    reads_text = format == "saved_model"
    _check_format(format, compute_type, int8, engines)
    check_version(export_dir)
    if engines or not reads_text:
        user = f"engines={','.join(engines)}" if engines else f"format={format!r}"
        require_packages(["onnx"], user)
        if int8:
            require_packages(["onnxruntime"], f"{user} with int8")
    config = task.model.config
    if task.untrained:
        where = f"{task.source.checkpoint.path}: " if task.source else ""
        raise InputError(
            f"{where}lacks the weights {', '.join(task.untrained)}; expected a model that was "
            f"trained for the task {task.task}"
        )
    if getattr(task.model, "dense", ()) and not reads_text:
        raise InputError(
            f"format={format!r}: the model has Dense modules, which the format "
            "does not contain; expected format='saved_model'"
        )
    compute_type = compute_type or "float32"
    if int8 and not reads_text:  # A SavedModel has its int8 file beside it.
        compute_type = "int8"
    run = task.source.run if task.source else None
    settings, results = (run.settings, run.results) if run else ({}, {})
    info: dict[str, Any] = {
        "task": task.task,
        "model": public_name(task.source.checkpoint.path) if task.source else "a model in memory",
        "weights_sha256": weights_checksum(task.source.checkpoint.path) if task.source else None,
        "format": format,
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
        write_engines = None
        if engines:
            # Imported here, because only exports with engines need the package onnx.
            from keras_bert.export.onnx import write_engine_files

            spec = served.spec()
            info["engines"] = {"names": list(engines), "network": spec.to_json()}
            write_engines = functools.partial(write_engine_files, task.model, spec, int8=int8)
        write_saved_model(served, export_dir, info, card, task.example_request(), write_engines)
    else:
        info["max_seq_length"] = config.max_position_embeddings  # No text is truncated to less.
        # Imported here, because only exports to ONNX need the package onnx.
        from keras_bert.export.onnx import write_onnx_folder

        write_onnx_folder(
            task.model,
            task.tokenizer.vocab,
            export_dir,
            info,
            card,
            int8=int8,
            omitted_outputs=_omitted_outputs(task),
        )
    source = task.source.checkpoint.path if task.source else info["model"]
    logging.info("Exported %s to %s (task: %s)", source, export_dir, task.task)
    return export_dir


def _check_format(
    format: str, compute_type: str | None, int8: bool, engines: Sequence[str]
) -> None:
    """Raises InputError for an unknown value, or one that the format does not have."""
    if format not in FORMATS:
        raise InputError(f"format={format!r}: expected one of {', '.join(FORMATS)}")
    if compute_type not in (None, *COMPUTE_TYPES):
        raise InputError(
            f"compute_type={compute_type!r}: expected one of {', '.join(COMPUTE_TYPES)}"
        )
    unknown = [name for name in engines if name not in PRECISIONS]
    if unknown:
        raise InputError(
            f"engines={','.join(engines)}: found {unknown[0]!r}; expected some of "
            f"{', '.join(PRECISIONS)}"
        )
    if format != "saved_model":
        for name, value in (("compute_type", compute_type), ("engines", engines)):
            if value:
                raise InputError(f"{name} has no effect with format={format!r}; expected no value")
    elif int8 and not set(engines) & set(INT8_ENGINES):
        raise InputError(
            f"int8 has no effect with format={format!r} without an engine that has int8; "
            f"expected engines={','.join(INT8_ENGINES)}"
        )


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
