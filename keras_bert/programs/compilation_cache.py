"""Keeps the programs that XLA compiles on disk, so that the next run need not compile them again.

The folder is `$XDG_CACHE_HOME/keras_bert/xla/KEY` (`~/.cache` by default), or the one that the
environment variable KERAS_BERT_COMPILATION_CACHE names; if the variable is empty, nothing is kept.
KEY depends on the processor, the package versions and XLA's flags, because a compiled program
depends on them. TensorFlow reads the files as they are: a damaged one would fail the training step,
and a foreign one would run foreign code. Therefore, only a folder that nobody else can write to is
used, and incomplete files are removed before.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import time
from pathlib import Path

from absl import logging

from keras_bert.files import package_versions

VARIABLE = "KERAS_BERT_COMPILATION_CACHE"
_PACKAGES = ("tensorflow", "jax", "jaxlib")
_ENTRY = re.compile(r"xla_compile_cache__.*\.pb")
# The oldest entries are removed above this size. A fine-tuning run adds some megabytes.
_MAX_BYTES = 1 << 30
# With less space, TensorFlow could fail to write an entry, and the training step with it.
_MIN_FREE_BYTES = 1 << 30
_TEMPORARY_SECONDS = 24 * 3600  # After this time, a temporary file belongs to a killed run.


def use_compilation_cache() -> None:
    """Lets TensorFlow and JAX keep compiled programs on disk. Must be called before their import.

    Without a usable folder, programs are compiled in every run. An `--tf_xla_persistent_cache_...`
    flag in TF_XLA_FLAGS, and JAX_COMPILATION_CACHE_DIR, override the folder.
    """
    root = os.environ.get(VARIABLE)
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
        kept = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
        cpu = "\n".join(line for line in lines if line.startswith(kept))
    parts = [cpu, str(package_versions(_PACKAGES)), os.environ.get("XLA_FLAGS", "")]
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
    """Returns whether a file consists of whole protocol-buffer fields, the last one not truncated.

    After a power failure, a file can be empty or end early.
    """
    data = path.read_bytes()
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        if tag & 7 == 2:  # A field with a length.
            length, place = _varint(data, place)
            place += length
        elif tag & 7 == 0:
            _, place = _varint(data, place)
        else:
            return False
    return 0 < place == len(data)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Reads a variable-length integer; returns it and the place after it."""
    value = 0
    for shift in range(0, 64, 7):
        if place >= len(data):
            break
        value |= (data[place] & 0x7F) << shift
        place += 1
        if data[place - 1] < 0x80:
            return value, place
    return value, len(data) + 1
