"""Checkpoints: model, optimizer and step in, a folder that appears whole or not at all out.

`DIR/step-00001000/` holds `model.safetensors` and `optimizer.safetensors` (variables by path) and
`state.json` (the step, a SHA-256 a file). Data order, masks and dropout are functions of the step,
so this is all that a run needs to go on bit for bit.
"""

import shutil
from pathlib import Path

import keras
import numpy as np
from absl import logging
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from keras_bert.errors import InputError
from keras_bert.files import appearing, read_json, sha256, write_json

PREFIX = "step-"


def save_checkpoint(
    directory: Path,
    step: int,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    max_to_keep: int = 3,
) -> Path:
    """Writes a checkpoint beside its final place, then renames it into place.

    Args:
        directory: the folder of all checkpoints; made if absent.
        step: the number of finished training steps.
        model: its variables are saved by path.
        optimizer: likewise.
        max_to_keep: older checkpoints beyond this number are removed.

    Returns:
        The checkpoint's folder.

    Raises:
        InputError: the folder cannot be written (rights, a full disk).
    """
    final = Path(directory) / f"{PREFIX}{step:08d}"
    with appearing(final, failures=(SafetensorError,)) as partial:
        partial.mkdir()
        files = {"model.safetensors": model.variables, "optimizer.safetensors": optimizer.variables}
        for name, variables in files.items():
            save_file(_values(variables), partial / name)
        digests = {name: sha256(partial / name) for name in files}
        write_json(partial / "state.json", {"step": step, "sha256": digests})
    for old in list_checkpoints(directory)[:-max_to_keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def list_checkpoints(directory: Path) -> list[Path]:
    """Lists the checkpoints in a folder, oldest first.

    Args:
        directory: the folder given to `save_checkpoint`; it may be absent.

    Returns:
        The folders of the checkpoints.
    """
    return sorted(Path(directory).glob(f"{PREFIX}*"))


def restore_latest(
    directory: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> int:
    """Restores the newest checkpoint whose files are whole.

    Args:
        directory: the folder given to `save_checkpoint`; it may be absent.
        model: its variables are overwritten.
        optimizer: likewise; it must be built.

    Returns:
        The number of finished steps; 0 where there is no checkpoint.

    Raises:
        InputError: checkpoints exist but none is whole, or one is of another model.
    """
    checkpoints = list_checkpoints(directory)
    for path in reversed(checkpoints):
        try:
            state = read_json(path / "state.json")
            broken = [n for n, digest in state["sha256"].items() if sha256(path / n) != digest]
        except (OSError, ValueError, KeyError):
            broken = ["state.json"]
        if broken:
            logging.warning("%s is damaged (%s); trying the one before", path, ", ".join(broken))
            continue
        _assign(model.variables, path / "model.safetensors")
        _assign(optimizer.variables, path / "optimizer.safetensors")
        return state["step"]
    if checkpoints:
        raise InputError(f"{directory}: all {len(checkpoints)} checkpoints are damaged")
    return 0


def _values(variables: list[keras.Variable]) -> dict[str, np.ndarray]:
    # safetensors writes the raw buffer, so a view in another order would be saved scrambled.
    values = {v.path: np.ascontiguousarray(keras.ops.convert_to_numpy(v)) for v in variables}
    if len(values) != len(variables):
        raise ValueError("two variables share a path; checkpoints need unique paths")
    # ascontiguousarray makes scalars [1]; restore their shape.
    return {v.path: values[v.path].reshape(v.shape) for v in variables}


def _assign(variables: list[keras.Variable], path: Path) -> None:
    values = load_file(path)
    misfits = [
        f"{v.path} {tuple(v.shape)}"
        for v in variables
        if v.path not in values or values[v.path].shape != tuple(v.shape)
    ]
    misfits += sorted(set(values) - {v.path for v in variables})
    if misfits:
        raise InputError(f"{path}: does not fit this model: {', '.join(misfits)}")
    for variable in variables:
        variable.assign(values[variable.path])
