"""Decides whether a run's folder starts, resumes, rejects or has finished a run.

`run.json` says what the run is (settings, versions); `results.json` appears when it is finished.
`.lock` is there while a process is at work; it holds nothing.
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
    gather,
    lost_workers_end,
    num_workers,
    worker_index,
)

_LOCK = ".lock"
_MARK = ".workers-"
_SECONDS_TO_APPEAR = 10.0  # A network file system may show a new file late.
PACKAGES = ("tensorflow", "jax", "keras", "numpy")


def is_finished(
    output_dir: Path, settings: Mapping[str, object], strategy: tf.distribute.Strategy
) -> bool:
    """Looks whether a folder holds this run, and whether it is finished.

    Of several workers all must call it; what the first of them finds holds for all.

    Args:
        output_dir: the run's folder; it may be absent.
        settings: everything that the outcome depends on, as JSON values.
        strategy: the devices.

    Returns:
        True if there is nothing left to do.

    Raises:
        InputError: the folder holds a run with other settings, or it is not one folder for all
            workers.
        EndedEarly: another worker is gone.
    """
    last, refusal = "", ""
    if worker_index(strategy) == 0:
        try:
            last = _last_file(output_dir, settings)
        except InputError as error:
            refusal = str(error)
    last, refusal = gather(strategy, [last, refusal])[0]
    if refusal:
        raise InputError(refusal)
    if last:
        _check_all_find(strategy, output_dir / last)
    return last == "results.json"


def _last_file(output_dir: Path, settings: Mapping[str, object]) -> str:
    """Names the last file that this run wrote in its folder, "" if none."""
    run_file = output_dir / "run.json"
    if not run_file.exists():
        return ""
    settings = json.loads(json.dumps(settings))
    old = read_json(run_file).get("settings")
    if not isinstance(old, dict):
        raise InputError(f"{run_file}: has no settings; expected a run's record")
    old, settings = flat(old), flat(settings)
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
    return "results.json" if (output_dir / "results.json").exists() else run_file.name


def flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Names settings of settings by their path, so that a message shows the one that differs.

    Args:
        settings: JSON values by name.

    Returns:
        The same without mappings in it: `phase-1.log_steps` for `log_steps` of `phase-1`.
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
    """Records a run in its folder and keeps other runs out of it during the block.

    Args:
        output_dir: the run's folder; made if absent.
        settings: as given to `is_finished`.
        strategy: the devices; its workers end the block together.

    Yields:
        The folder to write to: the run's, or for all workers but the first one that goes away.

    Raises:
        InputError: the folder cannot be written, another process works in it or has meanwhile
            begun a run with other settings in it, or it is not one folder for all workers.
        EndedEarly: another worker is gone.
    """
    with lost_workers_end(strategy):
        if worker_index(strategy):
            with tempfile.TemporaryDirectory() as folder:
                _check_one_folder(strategy, output_dir)
                yield Path(folder)
        else:
            at_work = f"{output_dir}: another process is at work in this folder"
            with locked(output_dir / _LOCK, at_work):
                # Once more: another one may have begun, and ended, since `is_finished`.
                if not _last_file(output_dir, settings):
                    record = {"settings": settings, "versions": _versions()}
                    write_json(output_dir / "run.json", record)
                _check_one_folder(strategy, output_dir)
                yield output_dir
        all_sum(strategy)(np.zeros([1]))  # What the first worker wrote is there for all.


def _check_one_folder(strategy: tf.distribute.Strategy, output_dir: Path) -> None:
    """Checks that every worker finds a mark that worker 0 makes in its folder."""
    if num_workers(strategy) == 1:
        return
    mark = output_dir / f"{_MARK}{secrets.token_hex(8)}"
    is_chief = worker_index(strategy) == 0
    try:
        if is_chief:
            for leftover in output_dir.glob(f"{_MARK}*"):  # of one that was killed here
                leftover.unlink()
            write_json(mark, {})
        name = gather(strategy, mark.name)[0]
        _check_all_find(strategy, output_dir / name)
    finally:
        if is_chief:
            mark.unlink(missing_ok=True)


def _check_all_find(strategy: tf.distribute.Strategy, path: Path) -> None:
    """Checks that a file of worker 0's in the run's folder is there for every worker."""
    if num_workers(strategy) == 1:
        return
    found = gather(strategy, [str(path.parent.absolute()), _appears(path)])
    for other, (folder, there) in enumerate(found):
        if not there:
            raise InputError(
                f"--output_dir is {found[0][0]} on worker 0 and {folder} on worker {other}, where "
                "worker 0's files do not appear; it must be one folder that all workers reach"
            )


def _appears(path: Path) -> bool:
    end = time.monotonic() + _SECONDS_TO_APPEAR
    while True:
        with contextlib.suppress(OSError):
            os.listdir(path.parent.parent)  # Asks the server anew, which a look at a path may not.
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
