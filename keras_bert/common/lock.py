"""Limits a folder to one process at a time, with a lock file."""

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from keras_bert.common.errors import InputError, InUse

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
