"""Reads and writes files: whole or not at all, under a lock, line by line."""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import numbers
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import keras_bert
from keras_bert.errors import InputError, InUse

# Identifies this machine in the names of partial files; a hash, because host names may be long.
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_BLOCK = 8 * 2**20  # bytes that are read at once for a checksum
_READ_BYTES = 2**14  # bytes of lines that are read at once; some batches of a model
_STALE_AFTER = 24 * 3600.0  # seconds after which an idle writer on another machine counts as dead

# --- JSON ---


def read_json(path: str | os.PathLike) -> dict:
    """Reads a JSON object from a file in UTF-8, with or without a byte order mark."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not JSON: not UTF-8 at byte {error.start}") from error
    content = parse_json(text, str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: contains a {type(content).__name__}; expected a JSON object")
    return content


def parse_json(content: str | bytes, where: str) -> Any:
    """Parses JSON; `where` starts the message of the InputError for text that is not JSON."""
    try:
        return json.loads(content)
    except RecursionError:
        raise InputError(f"{where}: cannot be read as JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{where}: is not JSON: {error}") from None


def value_of(
    path: str | os.PathLike, content: Mapping[str, Any], name: str, kind: type, default: Any
) -> Any:
    """Returns `content[name]` of a JSON file, or `default` if the value is missing or null."""
    value = content.get(name)
    if value is None:
        return default
    check_schema(f"{path}: {name}", value, kind)
    return value


_KINDS = {
    int: "a whole number",
    bool: "true or false",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def check_schema(where: str, value: Any, schema: Any) -> None:
    """Checks a JSON value, or the arguments of the API in the same form.

    Args:
        where: the start of error messages, such as "entities[0]" or "train.json, line 3:".
        value: the value, whose lists may be tuples, and whose numbers may be those of NumPy.
        schema: a type; a tuple of alternatives; a list with the schema of all items; or a dict
            {name: schema of the value}, in which a "?" after a name means that it may be missing
            or null.
    """
    if isinstance(schema, tuple):
        # The alternative whose outermost type matches is the one that was meant.
        schema = next((one for one in schema if _matches(value, one)), schema)
    if isinstance(schema, tuple) or not _matches(value, schema):
        raise InputError(f"{where} is {value!r:.80}; expected {_described(schema)}")
    if isinstance(schema, list):
        for index, item in enumerate(value):
            check_schema(f"{where}[{index}]", item, schema[0])
    elif isinstance(schema, dict):
        separator = " " if where.endswith(":") else "."
        for name, part in schema.items():
            key, is_optional = name.removesuffix("?"), name.endswith("?")
            if key not in value and not is_optional:
                raise InputError(f"{where} has no {key!r}; expected {_described(part)}")
            if value.get(key) is not None or not is_optional:
                check_schema(f"{where}{separator}{key}", value[key], part)


def _matches(value: Any, schema: Any) -> bool:
    """Returns whether the outermost type of a value matches a schema."""
    if isinstance(schema, list | dict):
        return isinstance(value, list | tuple if isinstance(schema, list) else Mapping)
    kind = {int: numbers.Integral, float: numbers.Real}.get(schema, schema)
    return isinstance(value, kind) and isinstance(value, bool) == (schema is bool)


def _described(schema: Any) -> str:
    if isinstance(schema, tuple):
        return " or ".join(dict.fromkeys(map(_described, schema)))
    if isinstance(schema, list):
        return "a list"
    if isinstance(schema, dict):
        return f"an object with {', '.join(name for name in schema if not name.endswith('?'))}"
    return _KINDS.get(schema, "a number")


# --- writing ---


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


def check_not_input_folder(output_dir: str, inputs: Iterable[str]) -> None:
    """Rejects an output directory that also contains the input files, folders or globs.

    The output files would be mixed with the input, and read as input the next time.
    """
    output = Path(output_dir).resolve()
    for name in filter(None, inputs):
        path = Path(name)
        if output == (path if path.is_dir() else path.parent).resolve():
            raise InputError(
                f"--output_dir={output_dir}: is the folder of the input {name}; expected another "
                "folder, so that output and input stay apart"
            )


# --- lines of text ---


def check_no_nul(path: str | Path, number: int, text: str) -> None:
    """Rejects a line with a NUL character, which indicates a binary file or UTF-16."""
    if "\0" in text:
        raise InputError(f"{path}, line {number}: has a NUL character; expected text in UTF-8")


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yields (number, text) for each line, with numbers from 1 and texts without line ends.

    The path "-" is standard input.
    """
    for lines in read_ready_lines(path):
        yield from lines


def read_ready_lines(path: str | Path) -> Iterator[list[tuple[int, str]]]:
    """Yields lists of the lines of `read_lines`: those that can be read at once.

    These are the lines that were written to a terminal or pipe since the last list, and about
    _READ_BYTES of a file.
    """
    number = 0
    try:
        with contextlib.ExitStack() as stack:  # It does not close standard input.
            file = sys.stdin.buffer if path == "-" else stack.enter_context(open(path, "rb"))
            for block in _ready_blocks(file):
                lines = []
                for line in io.BytesIO(block):
                    number += 1
                    try:
                        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                    except UnicodeDecodeError as error:
                        if lines:
                            yield lines
                        bad = error.object[error.start : error.start + 10]
                        raise InputError(
                            f"{path}, line {number}: expected UTF-8, got the bytes {bad!r}"
                        ) from None
                    lines.append((number, text.removesuffix("\n").rstrip("\r")))
                yield lines
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _ready_blocks(file: io.BufferedReader) -> Iterator[bytes]:
    """Yields complete lines as soon as they can be read, then the line whose end is missing."""
    while data := file.read1(_READ_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end]
        if end < len(data):
            yield data[end:] + file.readline()


# --- locks ---


_REMEDY = "run the same command again once that process has ended"


@contextlib.contextmanager
def locked(path: str | os.PathLike, message: str) -> Iterator[None]:
    """Holds a lock on a file during the block, and deletes the file afterwards.

    If the process is killed, the lock ends too, and the remaining file does no harm. On a network
    file system, the lock of a machine that has failed ends when the lease of the lock expires.

    Raises:
        InUse: another process has the lock. The error is `message`, followed by the id and the
            machine of that process.
        InputError: the file cannot be created or locked.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened for writing, because network file systems grant exclusive locks only then. The file
        # is never replaced by another one of the same name, because two processes could then each
        # hold a lock on one of them.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUse(f"{message}{_holder(descriptor)}; {_REMEDY}") from error
        except OSError as error:
            raise InputError(f"{path}: cannot be locked ({error.strerror})") from error
        if not _is_at(descriptor, path):  # Another process deleted the file meanwhile.
            raise InUse(f"{message}; {_REMEDY}")
        with contextlib.suppress(OSError):  # A full disk is harmless: the text is for messages.
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            if _is_at(descriptor, path):
                with contextlib.suppress(OSError):
                    path.unlink()
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    with contextlib.suppress(OSError):
        if name := os.pread(descriptor, 200, 0).decode(errors="replace"):
            return f" ({name})"
    return ""


def _is_at(descriptor: int, path: Path) -> bool:
    """Returns whether an open file is still the file at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


# --- versions of packages, which files record ---


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns {package: version, or "not installed"} for keras_bert and `packages`."""
    versions = {"keras_bert": keras_bert.__version__}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
