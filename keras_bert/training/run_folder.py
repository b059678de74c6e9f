"""Records a run in its directory, finds out whether it is finished, and locks the directory.

`run.json` is the record of the run; `results.json` exists once the run is finished; `.lock` exists
while a process is working in the directory, and contains the process id and machine. `run.json` has

    settings        everything that affects the results; a resumed run must have the same settings
    versions        package versions at the start of the run
"""

import contextlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.errors import InputError, shorten
from keras_bert.files import locked, package_versions, read_json, write_json
from keras_bert.training.checkpoint import PREFIX
from keras_bert.training.cluster import (
    all_sum,
    convert_lost_worker_errors,
    gather,
    num_workers,
    worker_index,
)
from keras_bert.training.log import BOARD, METRICS

RUN_FILE, RESULTS = "run.json", "results.json"
_PACKAGES = ("tensorflow", "jax", "keras", "numpy")
_LOCK = ".lock"
_MARKER_PREFIX = ".workers-"
_VISIBILITY_TIMEOUT = 10.0  # seconds; on a network file system, new files may be visible late


# --- directory ---


def is_finished(
    output_dir: Path, settings: Mapping[str, object], strategy: tf.distribute.Strategy
) -> bool:
    """Returns whether the run in a directory is finished; all workers must call it.

    `settings` must contain everything that affects the results, as JSON values.
    """
    names, message = [], ""
    if worker_index(strategy) == 0 and (output_dir / RUN_FILE).exists():
        try:
            _check_same_settings(output_dir, settings)
            names = [name for name in (RUN_FILE, RESULTS) if (output_dir / name).exists()]
        except InputError as error:
            message = str(error)
    names, message = gather(strategy, [names, message])[0]
    if message:
        raise InputError(message)
    if names:
        _check_all_find(strategy, output_dir / names[-1])
    return RESULTS in names


def log_finished(output_dir: Path, is_part: bool = False) -> None:
    """Logs that a run is finished. Unless `is_part`, also logs how to start a new run."""
    remedy = "" if is_part else " (use another folder for a new run)"
    logging.info("%s is finished; nothing to do%s", output_dir, remedy)


@contextlib.contextmanager
def running(
    output_dir: Path, settings: Mapping[str, object], strategy: tf.distribute.Strategy
) -> Iterator[Path]:
    """Records a run in its directory and locks the directory during the block.

    Yields the directory to write to: the run directory on worker 0, a temporary one on the others.
    A new run that raises an InputError before it has logged or saved anything leaves no files, so
    that the corrected command can use the directory.

    Raises:
        InUse: another process is using the directory.
        InputError: the directory cannot be written, contains a run with other settings, or is not
            shared by all workers.
        KeyboardInterrupt: Ctrl-C ended the block; the message has the step of the last checkpoint.
    """
    with convert_lost_worker_errors(strategy):
        try:
            if worker_index(strategy):
                with tempfile.TemporaryDirectory() as folder:
                    _check_one_folder(strategy, output_dir)
                    yield Path(folder)
            else:
                with _locked(output_dir):
                    # Checked again: another run may have started and ended since `is_finished`.
                    _check_same_settings(output_dir, settings)
                    _write_record(output_dir, settings)
                    _check_one_folder(strategy, output_dir)
                    yield output_dir
        except KeyboardInterrupt as interrupt:
            checkpoints = [*output_dir.rglob(f"checkpoints/{PREFIX}*")]  # also of parts of the run
            if interrupt.args or not checkpoints:
                raise
            last = max(checkpoints, key=lambda path: (path.stat().st_mtime_ns, path.name))
            step = int(last.name.removeprefix(PREFIX))
            raise KeyboardInterrupt(
                f"the checkpoint of step {step} is saved in {last.parent}"
            ) from interrupt
        all_sum(strategy)(np.zeros([1]))  # Waits for the files of worker 0.


@contextlib.contextmanager
def _locked(output_dir: Path) -> Iterator[None]:
    """Locks the directory; a new run that fails before it logs or saves leaves no files."""
    existed = output_dir.exists()
    try:
        with locked(output_dir / _LOCK, f"{output_dir}: another process is using this folder"):
            before = {*os.listdir(output_dir)}
            try:
                yield
            except InputError:
                _remove_failed_start(output_dir, {*os.listdir(output_dir)} - before)
                raise
    except InputError:
        if not existed:
            with contextlib.suppress(OSError):  # It is not empty.
                output_dir.rmdir()
        raise


def _remove_failed_start(output_dir: Path, created: set[str]) -> None:
    """Deletes the names `created` by a new run, unless it has logged or saved anything."""
    checkpoints, metrics = output_dir / "checkpoints", output_dir / METRICS
    has_saved = created - {RUN_FILE, BOARD, checkpoints.name, METRICS}
    has_saved = has_saved or (checkpoints.exists() and any(checkpoints.iterdir()))
    has_logged = metrics.exists() and metrics.stat().st_size
    if RUN_FILE not in created or has_saved or has_logged:
        return
    for path in (output_dir / name for name in created):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


# --- a folder that all workers share ---


def _check_one_folder(strategy: tf.distribute.Strategy, output_dir: Path) -> None:
    """Raises an InputError if a worker does not see a marker file that worker 0 creates."""
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
    """Raises an InputError if a worker does not see a file of worker 0 in the run directory."""
    if num_workers(strategy) == 1:
        return
    folders = gather(strategy, [str(path.parent.absolute()), _becomes_visible(path)])
    for worker, (folder, is_visible) in enumerate(folders):
        if not is_visible:
            raise InputError(
                f"--output_dir is {folders[0][0]} on worker 0 and {folder} on worker {worker}, "
                "where the files of worker 0 are not visible; expected one folder that all workers "
                "share"
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


# --- record ---


def _check_same_settings(output_dir: Path, settings: Mapping[str, object]) -> None:
    """Raises an InputError with all differences if the directory has a run with other settings.

    A setting that the record does not have, because an earlier version of the package wrote it, was
    off: False, 0 or empty.
    """
    run_file = output_dir / RUN_FILE
    if not run_file.exists():
        return
    record, settings = read_json(run_file), flat(json.loads(json.dumps(settings)))
    if not isinstance(record.get("settings"), dict):
        raise InputError(f"{run_file}: has no settings; expected the record of a run")
    old = flat(record["settings"])
    changed = [
        _difference(name, old.get(name), settings.get(name))
        for name in sorted(set(old) | set(settings))
        if old.get(name) != settings.get(name) and (name in old or settings[name])
    ]
    if not changed:
        return
    version = (record.get("versions") or {}).get("keras_bert")
    now = package_versions(())["keras_bert"]
    of_version = with_version = ""
    if version and version != now:
        of_version, with_version = f" of keras_bert {version}", f" (with {version}, not {now})"
    raise InputError(
        f"{output_dir}: contains a run{of_version} with other settings: {'; '.join(changed)}; "
        f"expected the same settings to resume it{with_version}, or another --output_dir"
    )


def _difference(name: str, old: object, new: object) -> str:
    """Describes the change of a setting; a checksum stands for the content of files."""
    subject = name.removesuffix("_sha256").removesuffix("_fingerprint")
    if subject != name:
        return f"the content of {subject} has changed"
    return f"{name} was {shorten(json.dumps(old))} and is now {shorten(json.dumps(new))}"


def flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Flattens nested settings: `log_steps` of `phase-1` becomes `phase-1.log_steps`."""
    named = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            named |= {f"{name}.{inner}": each for inner, each in flat(value).items()}
        else:
            named[name] = value
    return named


def _write_record(output_dir: Path, settings: Mapping[str, object]) -> None:
    """Writes run.json for a new run; warns if a run resumes with other versions of packages."""
    path, now = output_dir / RUN_FILE, package_versions(_PACKAGES)
    if not path.exists():
        write_json(path, {"settings": settings, "versions": now})
        return
    before = read_json(path).get("versions") or now
    names = [name for name in now if name != "jax" or keras.backend.backend() == "jax"]
    changed = [
        f"{name} {before[name]} and {now[name]}"
        for name in names
        if before.get(name, now[name]) != now[name]
    ]
    if changed:
        logging.warning(
            "%s: the run started with other versions of packages: %s; the results may differ from "
            "those of a run with one version. Install the first version of each package to get "
            "the same results as an uninterrupted run",
            output_dir,
            ", ".join(changed),
        )
