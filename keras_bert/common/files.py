"""Writes files and folders atomically, and provides helpers for JSON and checksums.

Content is written under a temporary name in the same folder, flushed to disk, and only then
renamed, so that a killed process or a full disk never leaves a partial file.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bert.common.errors import InputError

# Identifies this machine in the names of partial files; a hash, because host names may be long.
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_STALE_AFTER = 24 * 3600.0  # seconds after which an idle writer on another machine counts as dead
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def read_json(path: str | os.PathLike) -> dict:
    """Reads a JSON object.

    Raises:
        InputError: the file is missing, cannot be read, or is not a JSON object.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not JSON: not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from error
    except RecursionError:
        raise InputError(f"{path}: cannot be read as JSON: nested too deeply") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: contains a {type(content).__name__}; expected a JSON object")
    return content


def value_of(
    path: str | os.PathLike, content: Mapping[str, Any], name: str, kind: type, default: Any
) -> Any:
    """Returns a value of a JSON object, or the default if it is missing or null.

    Raises:
        InputError: the value is not of type `kind`: int, float, bool or str.
    """
    value = content.get(name)
    if value is None:
        return default
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{path}: {name} is {value!r}; expected {_KINDS[kind]}")
    return value


def write_json(path: str | os.PathLike, content: Mapping[str, object]) -> None:
    """Writes a JSON object to a file atomically, like `write_bytes`."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file atomically; its folder is created if necessary.

    Raises:
        InputError: the file cannot be written.
    """
    with atomic_path(path) as partial:
        partial.write_bytes(content)


def sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 checksum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_path(
    path: str | os.PathLike, failures: tuple[type[Exception], ...] = ()
) -> Iterator[Path]:
    """Yields a temporary path, and renames the file or folder written there to `path`.

    The temporary path is in the same folder, which is created if necessary; it does not exist yet.
    An existing file or folder at `path` is replaced if the block succeeds, and kept if it fails.

    Args:
        path: the final path.
        failures: exceptions besides OSError that mean that writing failed.

    Raises:
        InputError: the file or folder cannot be written (permissions, a full disk).
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        yield partial
        for each in [*partial.rglob("*"), partial]:
            _flush(each)
        _replace(partial, path)
        _flush(path.parent)  # Not its other files: others may be writing them.
    except (OSError, *failures) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be written ({reason})") from error
    finally:
        _remove(partial)


def _remove_leftovers(path: Path) -> None:
    """Removes partial files that killed writers of this path left behind."""
    leftover = re.compile(re.escape(f".{path.name}.") + r"([0-9a-f]{8})\.(\d{1,9})\.partial")
    for match in filter(None, map(leftover.fullmatch, os.listdir(path.parent))):
        partial = path.with_name(match[0])
        if _is_stale(partial, match[1], int(match[2])):
            _remove(partial)


def _is_stale(partial: Path, host: str, pid: int) -> bool:
    """Returns whether a partial file's writer is gone; for another machine, its age decides."""
    if host != _HOST:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - partial.stat().st_mtime > _STALE_AFTER
        return False
    if pid == os.getpid():
        return True  # In a container, a new process may have the same PID as the last.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # The process exists; it belongs to another user.
    return False


def _flush(path: Path) -> None:
    """Flushes a file, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(partial: Path, path: Path) -> None:
    if not partial.is_dir():
        os.replace(partial, path)
        return
    # A folder cannot be renamed onto a non-empty one, so the old one is renamed first. If the
    # process is killed in between, the old folder stays under that name until the next successful
    # write.
    aside = path.with_name(f".{path.name}.replaced")
    if path.is_dir():
        _remove(aside)
        os.rename(path, aside)
    try:
        os.rename(partial, path)
    except OSError:
        if aside.exists() and not path.exists():
            os.rename(aside, path)
        raise
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
