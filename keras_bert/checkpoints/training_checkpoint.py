"""Opens the checkpoints that a run saves while it trains, OUT/checkpoints/step-NNNNNNNN.

Such a folder has only the weights and the optimizer's state. Config, vocabulary, casing and labels
are those of OUT/model, so the run must be finished.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.model_directory import open_model_directory
from keras_bert.checkpoints.safetensors_file import WEIGHTS
from keras_bert.checkpoints.weights import Layout, StoredWeights
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, sha256

STATE = "state.json"
# Variables of a training model that are not weights.
_SEED_STATE = "seed_generator_state"


def _unchanged(path: str, value: np.ndarray) -> np.ndarray:
    return value


_LAYOUT = Layout(
    name=str,  # The files have this library's variable paths.
    store=_unchanged,
    restore=_unchanged,
    encoder_prefix="encoder/",
)


def is_training_checkpoint(path: Path) -> bool:
    """Returns whether a path is a checkpoint that a run saved while it trained."""
    return (path / STATE).is_file() and (path / WEIGHTS).is_file()


def open_training_checkpoint(path: Path) -> Checkpoint:
    """Opens a training checkpoint without reading its weights.

    Raises:
        InputError: the folder is not in the folder of a finished run, or the model of the run
            cannot be opened.
    """
    model = path.absolute().parent.parent / "model"
    if not model.is_dir():
        raise InputError(
            f"{path}: found no {model}, which has the config and the vocabulary; expected a "
            "checkpoint of a finished run in its folder checkpoints/"
        )
    return replace(
        open_model_directory(model),
        path=path,
        kind="a training checkpoint",
        open_weights=partial(_open_weights, path),
    )


@contextlib.contextmanager
def _open_weights(folder: Path) -> Iterator[StoredWeights]:
    path = folder / WEIGHTS
    digests = read_json(folder / STATE).get("sha256")
    if not isinstance(digests, dict) or sha256(path) != digests.get(WEIGHTS):
        raise InputError(
            f"{path}: does not have the checksum in {STATE}; expected an undamaged checkpoint"
        )
    try:
        file = safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a valid safetensors file ({error})") from None
    with file:
        names = [name for name in file.keys() if not name.endswith(_SEED_STATE)]  # noqa: SIM118
        yield StoredWeights(
            source=str(path),
            layout=_LAYOUT,
            shapes={name: tuple(file.get_slice(name).get_shape()) for name in names},
            read=file.get_tensor,
        )
