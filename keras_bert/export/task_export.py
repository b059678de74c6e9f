"""Writes a task object as a version folder: a SavedModel, or an ONNX file."""

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
from absl import logging

from keras_bert.checkpoints.weights import WEIGHTS
from keras_bert.errors import InputError
from keras_bert.export.engines import COMPUTE_TYPES, PRECISIONS, require_packages
from keras_bert.export.model_card import model_card, public_name
from keras_bert.export.network import Network
from keras_bert.export.saved_model import write_saved_model
from keras_bert.export.version_folders import INFO, check_version
from keras_bert.files import sha256, write_json

if TYPE_CHECKING:
    from keras_bert.tasks.task import Task

FORMATS = ("saved_model", "onnx")
# Start of the paths of weights that a checkpoint may lack -> the output that is then not exported.
_OUTPUT_OF = {"encoder/pooler": "pooled_output", "next_sentence": "next_sentence_logits"}


def export_task(
    task: "Task",
    export_dir: Path,
    format: str,
    *,
    compute_type: str | None = None,
    int8: bool = False,
    engines: Sequence[str] = (),
    examples: bool = True,
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
        where = f"{task.checkpoint.path}: " if task.checkpoint else ""
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
    path = task.checkpoint.path if task.checkpoint else None
    run = task.checkpoint.run if task.checkpoint else None
    settings, results = (run.settings, run.results) if run else ({}, {})
    shown = task.shown or (run.shown if run else ())
    info: dict[str, Any] = {
        "task": task.task,
        "model": public_name(path) if path else "a model in memory",
        "weights_sha256": weights_checksum(path) if path else None,
        "format": format,
        "compute_type": compute_type,
        "cls_token_id": task.tokenizer.cls_token_id,
        "sep_token_id": task.tokenizer.sep_token_id,
        "do_lower_case": task.tokenizer.do_lower_case,
        **task.tokenizer.settings.non_default(),
        **task.export_entries(),
    }

    if reads_text:
        if examples and shown:
            info["examples"] = [[*texts] for texts in shown]
            logging.info(
                "%s contains %d short training texts, which the page of the server shows as "
                "examples; export with examples=False (--noexamples) to omit them",
                export_dir / INFO,
                len(shown),
            )
        arguments = {"info": info, "settings": settings, "results": results}
        arguments |= {"int8": int8, "engines": list(engines)}
        if keras.backend.backend() == "tensorflow":
            export_saved_model(task, export_dir, **arguments)
        else:
            _export_in_tensorflow(task, export_dir, arguments)
    else:
        info["max_seq_length"] = config.max_position_embeddings  # No text is truncated to less.
        # Imported here, because only exports to ONNX need the package onnx.
        from keras_bert.export.onnx import write_onnx_folder

        write_onnx_folder(
            task.model,
            task.tokenizer,
            export_dir,
            info,
            lambda info: model_card(info, config, settings, results, {}),
            int8=int8,
            omitted_outputs=_omitted_outputs(task),
        )
    logging.info("Exported %s to %s (task: %s)", path or info["model"], export_dir, task.task)
    return export_dir


def export_saved_model(
    task: "Task",
    export_dir: Path,
    info: dict[str, Any],
    settings: Mapping[str, Any],
    results: Mapping[str, Any],
    int8: bool,
    engines: Sequence[str],
) -> None:
    """Writes a version folder with a SavedModel; the Keras backend must be TensorFlow.

    `info`, `settings` and `results` are those of `model_card`, and the others those of
    `export_task`.
    """
    served = task.served_class(Network(task.model, info["compute_type"]), task.processor)
    write_engines = None
    if engines:
        # Imported here, because only exports with engines need the package onnx.
        from keras_bert.export.onnx import write_engine_files

        info["engines"] = {"names": engines, "network": served.spec().to_json()}
        write_engines = functools.partial(
            write_engine_files, task.model, served, info["compute_type"], int8=int8
        )
    request, config = task.example_request(), task.model.config
    write_saved_model(
        served,
        export_dir,
        info,
        lambda info: model_card(info, config, settings, results, request),
        request,
        write_engines,
    )


def _export_in_tensorflow(task: "Task", export_dir: Path, arguments: Mapping[str, Any]) -> None:
    """Runs `export_saved_model` in a process with the TensorFlow backend.

    The graph of a SavedModel consists of the model's Keras layers, which run on one backend in a
    process. `arguments` are written as JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        task.save_pretrained(Path(folder, "model"))
        write_json(Path(folder, "arguments.json"), arguments)
        code = "import keras_bert.tasks.model_export as e, sys; e.export_saved_task(*sys.argv[1:])"
        environment = {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.run(
            [sys.executable, "-c", code, folder, str(export_dir)],
            # The other backend may have reserved the memory of the GPUs.
            env=os.environ | environment | {"CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if process.returncode:
        message = process.stdout.strip().replace(f"{folder}/", "")
        raise InputError(message or f"{export_dir}: the export failed in the TensorFlow backend")


def _check_format(
    format: str, compute_type: str | None, int8: bool, engines: Sequence[str]
) -> None:
    """Raises InputError for an unknown value, or one that the format does not have."""
    for name, values, choices in (
        ("format", [format], FORMATS),
        ("compute_type", [compute_type] if compute_type else [], COMPUTE_TYPES),
        ("engines", engines, tuple(PRECISIONS)),
    ):
        for value in values:
            if value not in choices:
                raise InputError(f"{name}={value!r}: expected one of {', '.join(choices)}")
    if format != "saved_model":
        for name, value in (("compute_type", compute_type), ("engines", engines)):
            if value:
                raise InputError(f"{name} has no effect with format={format!r}; expected no value")
    elif int8 and not any("int8" in PRECISIONS[engine] for engine in engines):
        raise InputError(
            f"int8 has no effect with format={format!r} without an engine that has int8; "
            "expected engines=onnxruntime"
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
