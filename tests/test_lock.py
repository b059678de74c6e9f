"""Tests that a lock is exclusive, also in race conditions, and leaves no files."""

import fcntl
import os
import socket
import subprocess
import sys

import pytest

from keras_bert.errors import InputError, InUse
from keras_bert.files import locked

HOLD = """
import sys
from keras_bert.files import locked
with locked(sys.argv[1], "taken"):
    print("inside", flush=True)
    sys.stdin.read()
"""


def test_lock_is_exclusive_until_its_holder_ends(tmp_path, root):
    path = tmp_path / "new" / ".lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"inside\n"
    name = rf"^taken \(process {holder.pid} on {socket.gethostname()}\); run the same command again"
    with pytest.raises(InUse, match=name), locked(path, "taken"):
        pass
    assert path.exists(), "its holder's"
    holder.kill()
    holder.communicate()
    assert path.exists(), "left by the kill"
    with locked(path, "taken"):
        assert path.exists()
    assert not path.exists()


def test_file_deleted_while_it_was_locked_is_not_a_lock(tmp_path, monkeypatch):
    """The previous holder deleted the file.

    The next process creates another file, so both processes would hold the lock.
    """
    flock = fcntl.flock

    def late(descriptor, operation):
        os.unlink(tmp_path / ".lock")
        (tmp_path / ".lock").touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InUse, match=r"^taken; run"), locked(tmp_path / ".lock", "taken"):
        pass
    assert (tmp_path / ".lock").exists(), "another process's"


def test_path_that_cannot_be_written_or_locked_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"file/\.lock: cannot be written \(.*exists"),
        locked(tmp_path / "file" / ".lock", "taken"),
    ):
        pass

    def fail(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with (
        pytest.raises(InputError, match=r"\.lock: cannot be locked \(No locks available\)"),
        locked(tmp_path / ".lock", "taken"),
    ):
        pass
