"""Saves and restores checkpoints of the model, the optimizer and the step, atomically.

`DIR/step-00001000/` contains `model.safetensors`, `optimizer.safetensors` (variables by path) and
`state.json` (the step, and the SHA-256 of both files). Data order, masked tokens and dropout are
functions of the seed and the step, so a run resumes from a checkpoint with bit-identical results.
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

from keras_bert.checkpoints.hugging_face import WEIGHTS
from keras_bert.checkpoints.open import STATE
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_json, sha256, write_json

PREFIX = "step-"
_MODEL, _OPTIMIZER = WEIGHTS, "optimizer.safetensors"


class CheckpointWriter:
    """Writes checkpoints in a background thread, and deletes all but the last `max_to_keep`.

    `save` waits for the previous checkpoint, copies the variables and returns, so training
    continues while the files are written. Each checkpoint is a folder in `directory`.
    """

    def __init__(self, directory: Path, max_to_keep: int = 3):
        self.directory = Path(directory)
        self._max_to_keep = max_to_keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(self, step: int, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Starts to write a checkpoint of the state after `step` steps."""
        self.wait()
        files = {
            _MODEL: _values(model.variables),
            _OPTIMIZER: _values(optimizer.variables),
        }
        self._writing = self._thread.submit(self._write, step, files)

    def check(self) -> None:
        """Raises an InputError if the last checkpoint could not be written; does not wait."""
        if self._writing and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the last checkpoint is written; raises an InputError if that fails."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()

    def close(self) -> None:
        """Waits for the last checkpoint; ignores its errors, which could hide an earlier one."""
        self._thread.shutdown()

    def _write(self, step: int, files: Mapping[str, dict[str, np.ndarray]]) -> None:
        final = self.directory / _folder_name(step)
        # A killed process may have left an incomplete checkpoint of a step that is not saved again.
        for leftover in self.directory.glob(f".{PREFIX}*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
        with atomic_path(final, failures=(SafetensorError,)) as partial:
            partial.mkdir()
            for name, values in files.items():
                save_file(values, partial / name)
            digests = {name: sha256(partial / name) for name in files}
            write_json(partial / STATE, {"step": step, "sha256": digests})
        # Checkpoints of later steps are damaged; otherwise the run would have resumed from them.
        later = [path for path in list_checkpoints(self.directory) if path.name > final.name]
        earlier = [path for path in list_checkpoints(self.directory) if path not in later]
        for old in later + earlier[: -self._max_to_keep]:
            shutil.rmtree(old, ignore_errors=True)


def list_checkpoints(directory: Path) -> list[Path]:
    """Lists the checkpoints in a directory, oldest first; [] if the directory does not exist."""
    return sorted(Path(directory).glob(f"{PREFIX}*"))


def restore_latest(
    directory: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> int:
    """Restores the newest undamaged checkpoint to a model and a built optimizer.

    Returns the number of completed steps, or 0 if there is no checkpoint.
    """
    checkpoints = list_checkpoints(directory)
    for path in reversed(checkpoints):
        try:
            state = read_json(path / STATE)
            step, digests = state["step"], state["sha256"]
            broken = [n for n in (_MODEL, _OPTIMIZER) if sha256(path / n) != digests[n]]
            if path.name != _folder_name(step):  # state.json itself has no checksum.
                broken.append(STATE)
        except (OSError, ValueError, KeyError, TypeError):
            broken = [STATE]
        if broken:
            logging.warning(
                "%s is damaged (%s); trying the previous checkpoint", path, ", ".join(broken)
            )
            continue
        _assign(model.variables, path / _MODEL)
        _assign(optimizer.variables, path / _OPTIMIZER)
        return step
    if checkpoints:
        raise InputError(
            f"{directory}: all {len(checkpoints)} checkpoints are damaged; expected an intact one "
            "(remove the folder to train from the start)"
        )
    return 0


def _folder_name(step: int) -> str:
    return f"{PREFIX}{step:08d}"


def _values(variables: list[keras.Variable]) -> dict[str, np.ndarray]:
    # The arrays are copied because training continues during the write. They must be in C order:
    # safetensors writes the raw buffer, so a view in another order would be saved scrambled.
    values = {v.path: np.array(keras.ops.convert_to_numpy(v), order="C") for v in variables}
    if len(values) != len(variables):
        raise ValueError("two variables share a path; checkpoints need unique paths")
    return values


def _assign(variables: list[keras.Variable], path: Path) -> None:
    values = load_file(path)
    mismatches = [
        f"{v.path} {tuple(v.shape)}"
        for v in variables
        if v.path not in values or values[v.path].shape != tuple(v.shape)
    ]
    mismatches += sorted(set(values) - {v.path for v in variables})
    if mismatches:
        raise InputError(f"{path}: the weights do not match this model: {', '.join(mismatches)}")
    for variable in variables:
        variable.assign(values[variable.path])
