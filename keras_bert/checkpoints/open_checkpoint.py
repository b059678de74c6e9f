"""Opens checkpoints of all formats."""

import os
from pathlib import Path

from absl import logging

from keras_bert.checkpoints import keras_hub
from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.google import is_google_checkpoint, open_google_checkpoint
from keras_bert.checkpoints.keras_hub import is_keras_hub_preset, open_keras_hub_preset
from keras_bert.checkpoints.model_directory import CONFIG, open_model_directory
from keras_bert.checkpoints.safetensors_file import INDEX, WEIGHTS
from keras_bert.checkpoints.training_checkpoint import (
    is_training_checkpoint,
    open_training_checkpoint,
)
from keras_bert.common.errors import InputError


def open_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Opens a checkpoint of any format without reading its weights, and logs the format.

    The path may be a Hugging Face model directory, the folder of an earlier run or one of its
    training checkpoints, a TF1 checkpoint in Google's format (prefix, directory or zip), or a
    KerasHub preset.

    Raises:
        InputError: the path is not a checkpoint, or the checkpoint is inconsistent.
    """
    path = Path(path)
    seeds = sorted(path.glob("seed-*/model"))
    if seeds and not (path / "model").exists():
        raise InputError(
            f"{path}: contains the models of several seeds; expected one of them, such as "
            f"{seeds[0].parent}"
        )
    if (path / "run.json").is_file() and not _contains_weights(path):
        path = path / "model"
    if is_google_checkpoint(path):
        checkpoint = open_google_checkpoint(path)
    elif not path.is_dir():
        problem = "is not a checkpoint" if path.exists() else "no such checkpoint"
        raise InputError(
            f"{path}: {problem}; expected a model directory, an earlier run's folder, a "
            "TF1 checkpoint (prefix, directory or zip) or a KerasHub preset"
        )
    elif is_keras_hub_preset(path):
        checkpoint = open_keras_hub_preset(path)
    elif is_training_checkpoint(path):
        checkpoint = open_training_checkpoint(path)
    else:
        checkpoint = open_model_directory(path)
    casing = "uncased" if checkpoint.do_lower_case else "cased"
    logging.info("%s is %s; the model is %s", path, checkpoint.kind, casing)
    if checkpoint.tokenizer_mismatch:
        logging.warning(
            "%s; the checkpoint is opened without its tokenizer", checkpoint.tokenizer_mismatch
        )
    return checkpoint


def _contains_weights(path: Path) -> bool:
    """Returns whether a folder is itself a model directory or a preset."""
    weights = (WEIGHTS, INDEX, keras_hub.WEIGHTS)
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in weights)
