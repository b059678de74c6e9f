"""Files and folders that appear whole or not at all, JSON and checksums.

In: a path and its content. Out: the file or folder, or one line that says why not. What is written
lies beside its place under a passing name, reaches the disk, and only then is renamed, so that a
kill or a full disk never leaves half of it.
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

# This machine, in the names of unfinished files; host names may be long.
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_LEFT_AFTER = 24 * 3600.0  # seconds without a change: then a writer elsewhere is taken to be dead
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def read_json(path: str | os.PathLike) -> dict:
    """Reads a JSON object.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        InputError: the file is absent, cannot be read, or is not a JSON object.
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
        raise InputError(f"{path}: is not JSON that can be read: nested too deep") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, not a JSON object")
    return content


def value_of(
    path: str | os.PathLike, content: Mapping[str, Any], name: str, kind: type, default: Any
) -> Any:
    """Returns a value of a JSON object, or the default where it is absent or null.

    Args:
        path: the object's file, for the message.
        content: from `read_json`.
        name: the value's.
        kind: int, float, bool or str.
        default: of any kind.

    Raises:
        InputError: it is of another kind.
    """
    value = content.get(name)
    if value is None:
        return default
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{path}: {name} is {value!r}; expected {_KINDS[kind]}")
    return value


def write_json(path: str | os.PathLike, content: Mapping[str, object]) -> None:
    """Writes a JSON object, whole or not at all.

    Args:
        path: the file; its folder is made if need be.
        content: JSON values by name.

    Raises:
        InputError: the place cannot be written.
    """
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file, whole or not at all.

    Args:
        path: the file; its folder is made if need be.
        content: all of it.

    Raises:
        InputError: the place cannot be written.
    """
    with appearing(path) as partial:
        partial.write_bytes(content)


def sha256(path: str | os.PathLike) -> str:
    """Computes the checksum of a file.

    Args:
        path: the file.

    Returns:
        Its SHA-256 in hexadecimal.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def appearing(
    path: str | os.PathLike, failures: tuple[type[Exception], ...] = ()
) -> Iterator[Path]:
    """Lends a passing name; what the block makes there, file or folder, comes to its place.

    An earlier file or folder in the place is replaced if the block succeeds and stays if it fails.

    Args:
        path: the place; its folder is made if need be.
        failures: exceptions beside OSError that mean that the writing failed, as some writers
            raise their own.

    Yields:
        The passing name, in the same folder; nothing is there yet.

    Raises:
        InputError: the place cannot be written (rights, a full disk).
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        yield partial
        for each in [*partial.rglob("*"), partial]:
            _flush(each)
        _put_in_place(partial, path)
        _flush(path.parent)  # Not what else is in there: others may be at work on it.
    except (OSError, *failures) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be written ({reason})") from error
    finally:
        _remove(partial)


def _remove_leftovers(path: Path) -> None:
    """Removes what writers of this path left when they were killed."""
    leftover = re.compile(re.escape(f".{path.name}.") + r"([0-9a-f]{8})\.(\d{1,9})\.partial")
    for match in filter(None, map(leftover.fullmatch, os.listdir(path.parent))):
        partial = path.with_name(match[0])
        if _is_left(partial, match[1], int(match[2])):
            _remove(partial)


def _is_left(partial: Path, host: str, pid: int) -> bool:
    """Returns whether its writer is gone; for another machine's file, only its age decides."""
    if host != _HOST:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - partial.stat().st_mtime > _LEFT_AFTER
        return False
    if pid == os.getpid():
        return True  # In a container, the next process may have the number of the last one.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # Another user's.
    return False


def _flush(path: Path) -> None:
    """Brings a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(partial: Path, path: Path) -> None:
    if not partial.is_dir():
        os.replace(partial, path)
        return
    # A folder cannot be renamed onto a full one, so the old one steps aside for a moment. If a kill
    # falls into that moment, it lies there until the next one has come to its place.
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
