"""A trained model from start to end: its directory in; the folder of a version that serves it out.

model directory, and the run it came from -> task and settings -> a model with its head -> the files
of one version: a SavedModel from text to answers, or an ONNX or LiteRT file

What a run was trained with (lengths, pairs, threshold) is taken from its run.json and
results.json, beside model/; a setting given here goes before it.
"""

from collections.abc import Mapping
from pathlib import Path

from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.checkpoints.safetensors_file import WEIGHTS
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, sha256
from keras_bert.serving.model_card import model_card
from keras_bert.serving.model_file import write_model_file
from keras_bert.serving.network import Network
from keras_bert.serving.saved_model import INFO, write_saved_model
from keras_bert.serving.version_folders import check_version, find_versions, next_version
from keras_bert.tasks.export.models import make_exported
from keras_bert.tasks.export.settings import FORMATS, TASKS, ExportSettings
from keras_bert.tasks.fine_tuning.earlier_run import EarlierRun

# What is served of which heads, by transformers' names for them.
_TASK_OF = {
    "BertForSequenceClassification": "classification",
    "BertForQuestionAnswering": "question_answering",
    "BertForTokenClassification": "ner",
    "BertForPreTraining": "fill_mask",
    "BertForMaskedLM": "fill_mask",
    "BertModel": "embedding",
}


def export(settings: ExportSettings) -> Path:
    """Exports a model.

    Args:
        settings: what and how.

    Returns:
        The folder of the version.

    Raises:
        InputError: a model or a setting that cannot be served, or a place that cannot be written.
    """
    export_dir = Path(settings.export_dir)
    check_version(export_dir)
    checkpoint = _open(Path(settings.model_dir))
    task = _task(settings, checkpoint)
    settings.check_read(task)
    run = EarlierRun.of(checkpoint.path)
    exported = make_exported(task, settings, checkpoint, run)
    compute_type = "int8" if settings.int8 else settings.compute_type or "float32"
    info = {
        "task": task,
        "model": str(checkpoint.path),
        "weights_sha256": _checksum(checkpoint.path),
        "format": settings.format,
        "compute_type": compute_type,
        "do_lower_case": checkpoint.do_lower_case,
        **exported.described,
    }

    def card(info: Mapping[str, object]) -> str:
        request = exported.request if settings.format == "saved_model" else {}
        return model_card(info, checkpoint.config, run.settings, run.results, request)

    if settings.format == "saved_model":
        served = exported.serve(Network(exported.model, compute_type))
        info |= exported.texts
        write_saved_model(served, export_dir, info, card, exported.request)
    else:
        info["max_seq_length"] = checkpoint.config.max_position_embeddings
        write_model_file(
            exported.model,
            export_dir,
            FORMATS[settings.format],
            info,
            card,
            checkpoint.vocab,
            int8=bool(settings.int8),
            left_out=exported.left_out,
        )
    logging.info("%s: %s of %s", export_dir, task, checkpoint.path)
    return export_dir


def export_run(output_dir: Path) -> list[Path]:
    """Exports what a run learnt, each of several seeds', to export/ beside its model/.

    Args:
        output_dir: the run's folder.

    Returns:
        The newest version of each. It is a new one unless the newest there is has these weights.

    Raises:
        InputError: the run trained nothing, or as `export`.
    """
    models = sorted(output_dir.glob("seed-*/model")) or [output_dir / "model"]
    if not models[0].is_dir():
        raise InputError(f"{output_dir}: holds no model/; --export needs a run that trains one")
    return [_newest(model, model.parent / "export") for model in models]


def _newest(model: Path, folder: Path) -> Path:
    """Returns the version of a model's weights, and makes it if need be."""
    versions = find_versions(folder)
    if versions:
        newest = versions[max(versions)]
        try:
            checksum = read_json(newest / INFO).get("weights_sha256")
        except InputError:  # Not a whole export of ours.
            checksum = None
        if checksum is not None and checksum == _checksum(model):
            return newest
    return export(ExportSettings(str(model), str(folder / str(next_version(folder)))))


def _open(path: Path) -> Checkpoint:
    """Opens a model that can be served: it has a vocabulary and attends to both sides."""
    seeds = sorted(path.glob("seed-*/model"))
    if seeds and not (path / "model").exists():
        raise InputError(
            f"--model_dir={path}: holds a model of each of several seeds; expected one of them, "
            f"such as {seeds[0].parent}"
        )
    checkpoint = open_checkpoint(path)
    if checkpoint.vocab is None:
        raise InputError(f"{checkpoint.why_no_vocab}; what is served cuts text itself")
    if checkpoint.config.is_decoder:
        raise InputError(
            f"{checkpoint.path}: is a left-to-right model (is_decoder), which is not served; "
            "expected one that attends to both sides"
        )
    return checkpoint


def _task(settings: ExportSettings, checkpoint: Checkpoint) -> str:
    """Returns the task: the one that is asked for, else the one that the heads are for."""
    task = _TASK_OF.get(checkpoint.architecture)
    if settings.task in ("", task):
        if task is None:
            raise InputError(
                f"{checkpoint.path}: names no heads that are known ({checkpoint.architecture}); "
                f"expected --task={'|'.join(TASKS)}"
            )
        return task
    # A classifier's and a tagger's head have the same name; any model has an encoder.
    if task is not None and settings.task != "embedding":
        raise InputError(
            f"--task={settings.task}: {checkpoint.path} is a {checkpoint.architecture}; expected "
            f"--task={task} or a model that was trained for it"
        )
    return settings.task


def _checksum(path: Path) -> str | None:
    """Returns the checksum of a model directory's weights; other checkpoints have none."""
    return sha256(path / WEIGHTS) if (path / WEIGHTS).is_file() else None
