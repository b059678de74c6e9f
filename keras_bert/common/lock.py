"""A lock file that keeps a folder to one process at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from keras_bert.common.errors import InputError


@contextlib.contextmanager
def locked(path: str | os.PathLike, refusal: str) -> Iterator[None]:
    """Keeps other processes out during the block, by a lock on a file that serves nothing else.

    The system lifts the lock when this process ends, however it does. The file goes at the end of
    the block; one that a killed process left is taken over.

    Args:
        path: the file; its folder is made if need be.
        refusal: what to say to whom another process keeps out.

    Raises:
        InputError: another process is inside, or the file cannot be made or locked.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # For writing, as a network file system grants no other lock. The file is never replaced:
        # locks on two files that had the same name, one after the other, could both be held.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(refusal) from error
        except OSError as error:
            raise InputError(f"{path}: cannot be locked ({error.strerror})") from error
        if not _is_at(descriptor, path):  # Whoever was inside removed it after it was opened here.
            raise InputError(refusal)
        try:
            yield
        finally:
            if _is_at(descriptor, path):
                with contextlib.suppress(OSError):
                    path.unlink()
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Returns whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
