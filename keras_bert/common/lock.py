"""Limits a folder to one process at a time, with a lock file."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from keras_bert.common.errors import InputError


@contextlib.contextmanager
def locked(path: str | os.PathLike, message: str) -> Iterator[None]:
    """Holds a lock on a file during the block; raises an InputError if it cannot.

    The file is used for nothing else, and its folder is created if necessary. The operating system
    releases the lock when the process ends for any reason. The file is deleted at the end of the
    block; a file left by a killed process is reused. `message` is the error if another process
    holds the lock.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened for writing, because network file systems grant exclusive locks only then. The file
        # is never replaced: two processes could hold locks on two successive files of the same
        # name.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(message) from error
        except OSError as error:
            raise InputError(f"{path}: cannot be locked ({error.strerror})") from error
        if not _is_at(descriptor, path):  # The last holder deleted it after it was opened here.
            raise InputError(message)
        try:
            yield
        finally:
            if _is_at(descriptor, path):
                with contextlib.suppress(OSError):
                    path.unlink()
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Returns whether a path still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
