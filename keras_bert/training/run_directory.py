"""Decides whether a run starts, resumes, is already finished or does not match its directory.

`run.json` contains the settings and package versions of the run; `results.json` exists once it is
finished. `.lock` is an empty file that exists while a process is working in the directory.
"""

import contextlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import tensorflow as tf

import keras_bert
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, write_json
from keras_bert.common.lock import locked
from keras_bert.training.cluster import (
    all_sum,
    convert_lost_worker_errors,
    gather,
    num_workers,
    worker_index,
)

_LOCK = ".lock"
_MARKER_PREFIX = ".workers-"
_VISIBILITY_TIMEOUT = 10.0  # On a network file system a new file may become visible late.
PACKAGES = ("tensorflow", "jax", "keras", "numpy")


def is_finished(
    output_dir: Path, settings: Mapping[str, object], strategy: tf.distribute.Strategy
) -> bool:
    """Checks that a directory belongs to this run, and returns whether the run is finished.

    Every worker must call it; all of them use the result of worker 0. `settings` must contain
    everything that the outcome depends on, as JSON values.

    Raises:
        InputError: if the directory holds a run with other settings, or is not shared by all
            workers.
        EndedEarly: if another worker is lost.
    """
    last, message = "", ""
    if worker_index(strategy) == 0:
        try:
            last = _last_file(output_dir, settings)
        except InputError as error:
            message = str(error)
    last, message = gather(strategy, [last, message])[0]
    if message:
        raise InputError(message)
    if last:
        _check_all_find(strategy, output_dir / last)
    return last == "results.json"


def _last_file(output_dir: Path, settings: Mapping[str, object]) -> str:
    """Returns the name of the last file that this run wrote in its directory, or ""."""
    run_file = output_dir / "run.json"
    if not run_file.exists():
        return ""
    settings = json.loads(json.dumps(settings))
    old = read_json(run_file).get("settings")
    if not isinstance(old, dict):
        raise InputError(f"{run_file}: has no settings; expected the record of a run")
    old, settings = flat(old), flat(settings)
    changed = [
        f"{name} was {json.dumps(old.get(name))} and is now {json.dumps(settings.get(name))}"
        for name in sorted(set(old) | set(settings))
        if old.get(name) != settings.get(name)
    ]
    if changed:
        raise InputError(
            f"{output_dir}: contains a run with other settings: {'; '.join(changed)}; expected the "
            "same settings to resume it, or another --output_dir"
        )
    return "results.json" if (output_dir / "results.json").exists() else run_file.name


def flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Flattens nested settings, so that error messages can name the setting that differs.

    `log_steps` of `phase-1` becomes `phase-1.log_steps`.
    """
    named = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            named |= {f"{name}.{inner}": each for inner, each in flat(value).items()}
        else:
            named[name] = value
    return named


@contextlib.contextmanager
def running(
    output_dir: Path, settings: Mapping[str, object], strategy: tf.distribute.Strategy
) -> Iterator[Path]:
    """Records a run in its directory and locks the directory during the block.

    Yields:
        The directory to write to: the run directory on worker 0, a temporary one on other workers.

    Raises:
        InputError: if the directory cannot be written, is in use by another process, holds a run
            with other settings, or is not shared by all workers.
        EndedEarly: if another worker is lost.
    """
    with convert_lost_worker_errors(strategy):
        if worker_index(strategy):
            with tempfile.TemporaryDirectory() as folder:
                _check_one_folder(strategy, output_dir)
                yield Path(folder)
        else:
            in_use = f"{output_dir}: another process is using this folder"
            with locked(output_dir / _LOCK, in_use):
                # Checked again: another run may have started and ended since `is_finished`.
                if not _last_file(output_dir, settings):
                    record = {"settings": settings, "versions": _versions()}
                    write_json(output_dir / "run.json", record)
                _check_one_folder(strategy, output_dir)
                yield output_dir
        all_sum(strategy)(np.zeros([1]))  # A barrier: worker 0 has written its files.


def _check_one_folder(strategy: tf.distribute.Strategy, output_dir: Path) -> None:
    """Checks that all workers see a marker file that worker 0 creates in its run directory."""
    if num_workers(strategy) == 1:
        return
    mark = output_dir / f"{_MARKER_PREFIX}{secrets.token_hex(8)}"
    is_chief = worker_index(strategy) == 0
    try:
        if is_chief:
            for leftover in output_dir.glob(f"{_MARKER_PREFIX}*"):  # from a killed process
                leftover.unlink()
            write_json(mark, {})
        name = gather(strategy, mark.name)[0]
        _check_all_find(strategy, output_dir / name)
    finally:
        if is_chief:
            mark.unlink(missing_ok=True)


def _check_all_find(strategy: tf.distribute.Strategy, path: Path) -> None:
    """Checks that all workers see a file of worker 0 in the run directory."""
    if num_workers(strategy) == 1:
        return
    found = gather(strategy, [str(path.parent.absolute()), _becomes_visible(path)])
    for other, (folder, there) in enumerate(found):
        if not there:
            raise InputError(
                f"--output_dir is {found[0][0]} on worker 0 and {folder} on worker {other}, where "
                "the files of worker 0 are not visible; expected one folder that all workers share"
            )


def _becomes_visible(path: Path) -> bool:
    end = time.monotonic() + _VISIBILITY_TIMEOUT
    while True:
        with contextlib.suppress(OSError):
            os.listdir(path.parent.parent)  # Refreshes the cache of a network file system.
            if path.name in os.listdir(path.parent):
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.2)


def _versions() -> dict[str, str]:
    found = {"keras_bert": keras_bert.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
