"""A run's folder: settings in; start, continue, refuse or nothing-to-do out.

`run.json` says what the run is (settings, versions); `results.json` appears when it is finished.
"""

import contextlib
import fcntl
import json
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.training.cluster import all_sum, lost_workers_end, worker_index

PACKAGES = ("keras-bert", "tensorflow", "jax", "keras", "numpy")


def is_finished(output_dir: Path, settings: Mapping[str, object]) -> bool:
    """Looks whether a folder holds this run, and whether it is finished.

    Args:
        output_dir: the run's folder; it may be absent.
        settings: everything that the outcome depends on, as JSON values.

    Returns:
        True if there is nothing left to do.

    Raises:
        InputError: the folder holds a run with other settings.
    """
    run_file = output_dir / "run.json"
    if not run_file.exists():
        return False
    settings = json.loads(json.dumps(settings))
    old = read_json(run_file).get("settings")
    if not isinstance(old, dict):
        raise InputError(f"{run_file}: has no settings; expected a run's record")
    changed = [
        f"{name} was {json.dumps(old.get(name))} and is now {json.dumps(settings.get(name))}"
        for name in sorted(set(old) | set(settings))
        if old.get(name) != settings.get(name)
    ]
    if changed:
        raise InputError(
            f"{output_dir} holds a run with other settings: {'; '.join(changed)}; "
            "give the same settings to continue it, or another --output_dir"
        )
    return (output_dir / "results.json").exists()


@contextlib.contextmanager
def running(
    output_dir: Path, settings: Mapping[str, object], strategy: tf.distribute.Strategy
) -> Iterator[Path]:
    """Records a run in its folder and keeps other runs out of it during the block.

    Args:
        output_dir: the run's folder; made if absent.
        settings: as given to `is_finished`.
        strategy: the devices; its workers end the block together.

    Yields:
        The folder to write to: the run's, or for all workers but the first one that goes away.

    Raises:
        InputError: the folder cannot be written, or another process works in it.
        EndedEarly: another worker is gone.
    """
    with lost_workers_end(strategy):
        if worker_index(strategy):
            with tempfile.TemporaryDirectory() as folder:
                yield Path(folder)
        else:
            with _locked(output_dir, settings):
                yield output_dir
        all_sum(strategy)(np.zeros([1]))  # What the first worker wrote is there for all.


@contextlib.contextmanager
def _locked(output_dir: Path, settings: Mapping[str, object]) -> Iterator[None]:
    run_file = output_dir / "run.json"
    if not run_file.exists():
        write_json(run_file, {"settings": settings, "versions": _versions()})
    # For writing, as a network file system grants no other lock.
    with open(run_file, "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # The system lifts it at any end.
        except BlockingIOError as error:
            raise InputError(f"{output_dir}: another process is at work in this folder") from error
        except OSError as error:
            raise InputError(f"{run_file}: cannot be locked: {error.strerror}") from error
        yield


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
