"""Starts and ends the runs of pre-training and fine-tuning programs."""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from absl import logging
from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.files import package_versions
from keras_bert.options import option

if TYPE_CHECKING:
    import tensorflow as tf

CACHE_VARIABLE = "KERAS_BERT_COMPILATION_CACHE"
_ENTRY = re.compile(r"xla_compile_cache__.*\.pb")
# The oldest entries are removed above this size. A fine-tuning run adds some megabytes.
_MAX_BYTES = 1 << 30
# With less space, TensorFlow could fail to write an entry, and the training step with it.
_MIN_FREE_BYTES = 1 << 30
_TEMPORARY_SECONDS = 24 * 3600  # After this time, a temporary file belongs to a killed run.


@dataclass(frozen=True)
class RunOptions:
    """The files of a run."""

    GROUP: ClassVar[str] = "output"
    output_dir: str = option("", "Folder for all files of the run.", required=True, may_change=True)
    export: bool = option(
        False,
        "Whether to export the trained model for serving, to OUTPUT_DIR/export/1.",
        needs="do_train",
        may_change=True,
    )


def make_strategy(flags: FlagValues) -> "tf.distribute.Strategy":
    """Creates the distribution strategy that the flags of `Devices` select."""
    from keras_bert.training.backend import make_strategy

    return make_strategy(
        flags.distribution_strategy, flags.num_devices, flags.worker_timeout, flags.model_parallel
    )


def check_export(flags: FlagValues) -> None:
    """Rejects --export with another backend than TensorFlow."""
    if flags.export and os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        raise InputError(
            "--export: requires the TensorFlow backend; to export a JAX run, run keras-bert export "
            "without KERAS_BACKEND"
        )


def check_output_dir(output_dir: str, init_checkpoint: str) -> None:
    """Rejects an output directory whose files would replace the initial checkpoint."""
    if not init_checkpoint:
        return
    start, output = Path(init_checkpoint), Path(output_dir)
    read = {path.resolve() for path in (start, start / "model")}
    if read & {path.resolve() for path in (output, output / "model", output / "best")}:
        raise InputError(
            f"--output_dir={output_dir}: overlaps with --init_checkpoint={init_checkpoint}; "
            "expected another folder, because the files of the run would replace the checkpoint"
        )


def finish(
    results: Mapping[str, object], output_dir: Path, export: bool, examples: bool | None = None
) -> None:
    """Prints a run's results, one per line, exports its model if requested and lists its files.

    `examples` is whether the export contains training texts, as in `ExportOptions`.
    """
    for name, value in results.items():
        print(f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}")
    if export:
        # Imported here, because it imports TensorFlow.
        from keras_bert.tasks.model_export import export_run

        print(f"export = {export_run(output_dir, examples)}")
    files = sorted(path.name + "/" * path.is_dir() for path in output_dir.iterdir())
    logging.info("Files in %s: %s", output_dir, ", ".join(name for name in files if name[0] != "."))


# --- the compiled programs of XLA ---


def use_compilation_cache() -> None:
    """Lets TensorFlow and JAX keep compiled programs on disk. Must be called before their import.

    The folder is `$XDG_CACHE_HOME/keras_bert/xla/KEY` (`~/.cache` by default), or the one that the
    environment variable KERAS_BERT_COMPILATION_CACHE names; if the variable is empty, nothing is
    kept. KEY depends on the processor, the package versions and XLA's flags, because a compiled
    program depends on them. TensorFlow reads the files as they are: a damaged one would fail the
    training step, and a foreign one would run foreign code. Therefore, only a folder that nobody
    else can write to is used, and incomplete files are removed before.

    Without a usable folder, programs are compiled in every run. An `--tf_xla_persistent_cache_...`
    flag in TF_XLA_FLAGS, and JAX_COMPILATION_CACHE_DIR, override the folder.
    """
    root = os.environ.get(CACHE_VARIABLE)
    if root == "":
        return
    if root is None:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "keras_bert/xla")
    folder = Path(root) / _key()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = _unusable(folder)
        _clean(folder)
    except (OSError, RuntimeError) as error:
        reason = str(error)
    if reason:
        logging.warning("%s: compiled programs are not kept: %s", folder, reason)
        return
    flags = os.environ.get("TF_XLA_FLAGS", "")
    if "tf_xla_persistent_cache" not in flags:
        flags += f" --tf_xla_persistent_cache_directory={folder}"
        os.environ["TF_XLA_FLAGS"] = flags.strip()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "jax"))


def _key() -> str:
    """Returns a name for the processor, the package versions and XLA's flags."""
    cpu = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        names = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
        cpu = "\n".join(line for line in lines if line.startswith(names))
    parts = [
        cpu,
        str(package_versions(("tensorflow", "jax", "jaxlib"))),
        os.environ.get("XLA_FLAGS", ""),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _unusable(folder: Path) -> str:
    """Returns why a folder cannot be used, or "" if it can."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users can write to the folder; expected one of your own with mode 0700"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "the folder is not writable"
    if re.search(r"\s", str(folder)):
        return "the path contains white space, which TF_XLA_FLAGS cannot express"
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE_BYTES:
        return f"only {free:,} bytes are free; expected at least {_MIN_FREE_BYTES:,}"
    return ""


def _clean(folder: Path) -> None:
    """Removes incomplete entries, leftovers of killed runs, and the oldest entries of many."""
    entries = []
    for path in [*folder.iterdir(), *folder.glob("jax/*")]:
        with contextlib.suppress(FileNotFoundError):  # Another process may remove it, too.
            status = path.stat()
            is_entry = _ENTRY.fullmatch(path.name)
            is_old = status.st_mtime < time.time() - _TEMPORARY_SECONDS
            if (is_entry and not _is_complete(path)) or (path.suffix == ".tmp" and is_old):
                path.unlink()
            elif is_entry or path.parent.name == "jax":  # JAX itself ignores damaged entries.
                entries.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = 0
    for _, size, path in sorted(entries, reverse=True):
        total += size
        if total > _MAX_BYTES:
            path.unlink(missing_ok=True)


def _is_complete(path: Path) -> bool:
    """Returns whether a file is a whole protocol buffer; after a power failure it may end early."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError

    data = path.read_bytes()
    try:
        Empty.FromString(data)  # Parses all fields as unknown ones.
    except DecodeError:
        return False
    return bool(data)
