"""Fixture for tests of full disks: a small disk that can be filled."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest


def skip_unless_needed(name: str, reason: str) -> NoReturn:
    """Skips a test, or fails it if the variable KERAS_BERT_NEEDS_`name` is set, as in .ci/run."""
    if f"KERAS_BERT_NEEDS_{name}" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass(frozen=True)
class SmallDisk:
    """A disk of a few megabytes. `filler` is the file that takes the space while it is full."""

    path: Path
    filler: Path

    def fill(self, free: int = 0) -> None:
        """Fills the disk except for `free` bytes, rounded to whole blocks."""
        status = os.statvfs(self.path)
        size = (status.f_bavail - free // status.f_frsize) * status.f_frsize
        with open(self.filler, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def release(self) -> None:
        """Deletes the filler."""
        self.filler.unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mounts a disk of 16 MiB, or skips the test where that is not permitted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        reason = mounted.stderr.strip() if mounted.returncode else ""
    except FileNotFoundError as error:
        reason = str(error)
    if reason:
        skip_unless_needed("DISK", f"needs a small disk: {reason}")
    try:
        (folder / "files").mkdir()
        yield SmallDisk(folder / "files", folder / "filler")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
