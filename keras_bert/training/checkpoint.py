"""Checkpoints of model, optimizer and step, in folders that appear whole or not at all.

`DIR/step-00001000/` holds `model.safetensors` and `optimizer.safetensors` (variables by path) and
`state.json` (the step, a SHA-256 a file). Data order, masks and dropout are functions of the step,
so this is all that a run needs to resume bit for bit.
"""

import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
from absl import logging
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from keras_bert.common.errors import InputError
from keras_bert.common.files import appearing, read_json, sha256, write_json

PREFIX = "step-"
_MODEL, _OPTIMIZER = "model.safetensors", "optimizer.safetensors"


class CheckpointWriter:
    """Writes checkpoints beside their final place, then renames them into place, in a thread.

    A save copies the variables and comes back; training continues while they are written. One is
    written at a time: a save waits for the one before.

    Args:
        directory: the folder of all checkpoints; made if absent.
        max_to_keep: older checkpoints beyond this number are removed.

    Attributes:
        directory: as given.
    """

    def __init__(self, directory: Path, max_to_keep: int = 3):
        self.directory = Path(directory)
        self._max_to_keep = max_to_keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, step: int, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Begins to write a checkpoint.

        Args:
            step: the number of finished training steps.
            model: its variables are saved by path.
            optimizer: likewise.

        Raises:
            InputError: the one before could not be written (rights, a full disk).
        """
        self.wait()
        files = {
            _MODEL: _values(model.variables),
            _OPTIMIZER: _values(optimizer.variables),
        }
        self._writing = self._thread.submit(self._write, step, files)

    def check(self) -> None:
        """Checks whether the checkpoint that is being written failed, without waiting for it.

        Raises:
            InputError: it did.
        """
        if self._writing and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the last checkpoint is in its place.

        Raises:
            InputError: it could not be written; those before are as they were.
        """
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def close(self) -> None:
        """Waits like `wait`, but leaves a failure to the error that ends the run already."""
        self._thread.shutdown()

    def _write(self, step: int, files: Mapping[str, dict[str, np.ndarray]]) -> None:
        final = self.directory / _folder_name(step)
        # A kill may have left half of a step that is not saved again.
        for leftover in self.directory.glob(f".{PREFIX}*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        with appearing(final, failures=(SafetensorError,)) as partial:
            partial.mkdir()
            for name, values in files.items():
                save_file(values, partial / name)
            digests = {name: sha256(partial / name) for name in files}
            write_json(partial / "state.json", {"step": step, "sha256": digests})
        # Later ones were damaged, or the run would have resumed them.
        later = [path for path in list_checkpoints(self.directory) if path.name > final.name]
        earlier = [path for path in list_checkpoints(self.directory) if path not in later]
        for old in later + earlier[: -self._max_to_keep]:
            shutil.rmtree(old, ignore_errors=True)


def list_checkpoints(directory: Path) -> list[Path]:
    """Lists the checkpoints in a folder, oldest first.

    Args:
        directory: the folder given to `CheckpointWriter`; it may be absent.

    Returns:
        The folders of the checkpoints.
    """
    return sorted(Path(directory).glob(f"{PREFIX}*"))


def restore_latest(
    directory: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> int:
    """Restores the newest checkpoint whose files are whole.

    Args:
        directory: the folder given to `CheckpointWriter`; it may be absent.
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
            step, digests = state["step"], state["sha256"]
            broken = [n for n in (_MODEL, _OPTIMIZER) if sha256(path / n) != digests[n]]
            if path.name != _folder_name(step):  # It has no checksum of its own.
                broken.append("state.json")
        except (OSError, ValueError, KeyError, TypeError):
            broken = ["state.json"]
        if broken:
            logging.warning("%s is damaged (%s); trying the one before", path, ", ".join(broken))
            continue
        _assign(model.variables, path / _MODEL)
        _assign(optimizer.variables, path / _OPTIMIZER)
        return step
    if checkpoints:
        raise InputError(f"{directory}: all {len(checkpoints)} checkpoints are damaged")
    return 0


def _folder_name(step: int) -> str:
    return f"{PREFIX}{step:08d}"


def _values(variables: list[keras.Variable]) -> dict[str, np.ndarray]:
    # Copies: training continues while they are written. In C order, as safetensors writes the raw
    # buffer and a view in another order would be saved scrambled.
    values = {v.path: np.array(keras.ops.convert_to_numpy(v), order="C") for v in variables}
    if len(values) != len(variables):
        raise ValueError("two variables share a path; checkpoints need unique paths")
    return values


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
