"""Writes files and folders atomically, reads JSON files and computes checksums.

Content is written under a temporary name in the same folder, flushed to disk, and then renamed, so
a killed process or a full disk never leaves a partial file under the final name.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bert.common.errors import InputError

# Identifies this machine in the names of partial files; a hash, because host names may be long.
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_BLOCK = 8 * 2**20  # bytes that are read at once for a checksum
_STALE_AFTER = 24 * 3600.0  # seconds after which an idle writer on another machine counts as dead
_KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    list: "a list",
}


def read_json(path: str | os.PathLike) -> dict:
    """Reads a JSON object from a file in UTF-8, with or without a byte order mark.

    Raises:
        InputError: the file is missing, cannot be read, or is not a JSON object.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
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
    """Returns `content[name]`, or `default` if the value is missing or null.

    `content` is the JSON object that was read from `path`.

    Raises:
        InputError: the value is not of type `kind`, which is int, float, bool, str or list.
    """
    value = content.get(name)
    if value is None:
        return default
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{path}: {name} is {value!r}; expected {_KINDS[kind]}")
    return value


def write_json(path: str | os.PathLike, content: Mapping[str, object]) -> None:
    """Writes a JSON object atomically, like `write_bytes`."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file atomically; creates its folder and raises InputErrors as `atomic_path` does."""
    with atomic_path(path) as partial:
        partial.write_bytes(content)


def sha256(path: str | os.PathLike, advance: Callable[[int], None] = lambda size: None) -> str:
    """Returns the SHA-256 checksum of a file, in hexadecimal.

    `advance` is called after each block that is read, with the number of bytes in the block.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


@contextlib.contextmanager
def atomic_path(
    path: str | os.PathLike, failures: tuple[type[Exception], ...] = ()
) -> Iterator[Path]:
    """Yields a temporary path, and renames the file or folder written there to `path`.

    If the block succeeds, an existing file or folder at `path` is replaced; if it fails, `path`
    does not change. The parent folder is created if necessary. `failures` are the exception types
    that mean, like OSError, that writing failed.

    Raises:
        InputError: the file or folder cannot be written (such as a full disk).
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
        _flush(path.parent)  # Without the other files in it, which other processes may be writing.
    except (OSError, *failures) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be written ({reason})") from error
    finally:
        _remove(partial)


def _remove_leftovers(path: Path) -> None:
    """Removes partial files of killed writers of a path, and restores a folder they had renamed."""
    leftover = re.compile(re.escape(f".{path.name}.") + r"([0-9a-f]{8})\.(\d{1,9})\.partial")
    for match in filter(None, map(leftover.fullmatch, os.listdir(path.parent))):
        partial = path.with_name(match[0])
        if _is_stale(partial, match[1], int(match[2])):
            _remove(partial)
    aside = _aside(path)
    if aside.is_dir() and not path.exists():
        os.rename(aside, path)
    _remove(aside)


def _is_stale(partial: Path, host: str, pid: int) -> bool:
    """Returns whether the process that wrote a partial file has ended.

    For a process on another machine, the age of the file decides.
    """
    if host != _HOST:
        with contextlib.suppress(FileNotFoundError):
            return time.time() - partial.stat().st_mtime > _STALE_AFTER
        return False
    if pid == os.getpid():
        return True  # In a container, a restarted process may get the same PID again.
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
    """Renames `partial` to `path`; a folder that was at `path` may then be at `partial`."""
    if not partial.is_dir() or not path.is_dir():
        os.replace(partial, path)
    elif not _exchange(partial, path):
        _rename_in_two_steps(partial, path)


def _exchange(partial: Path, path: Path) -> bool:
    """Exchanges two folders in one step; returns False if the system does not support this."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # Not Linux, or an old C library.
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    if not rename(here, os.fsencode(partial), here, os.fsencode(path), exchange):
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


def _rename_in_two_steps(partial: Path, path: Path) -> None:
    """Replaces a folder where folders cannot be exchanged, such as on NFS.

    If the process is killed between the steps, the old folder stays under another name until the
    next write to `path`.
    """
    aside = _aside(path)
    os.rename(path, aside)
    try:
        os.rename(partial, path)
    except OSError:
        os.rename(aside, path)
        raise
    _flush(path.parent)  # Before the old folder is deleted.
    _remove(aside)


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
