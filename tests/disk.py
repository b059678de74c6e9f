"""Fixtures for tests of files: a small disk that can be filled, and a trace of file operations."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent


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


# (call, paths) such as ("write", ["/a"]), ("fsync", ["/a"]), ("rename", ["/a", "/b"]) and
# ("delete", ["/a"]), in order.
FileCalls = Sequence[tuple[str, list[str]]]
_WRITES = ("write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate")
_RENAMES = ("rename", "renameat", "renameat2")
_FLUSHES = ("fsync", "fdatasync")
_DELETIONS = ("unlink", "unlinkat", "rmdir")


@pytest.fixture
def trace_files(tmp_path: Path) -> Callable[[str, Path], FileCalls]:
    """Returns a function: (Python code, folder) -> the calls that the code makes on its files.

    The code runs in a process of its own under strace; without strace, the test is skipped.
    """
    if not shutil.which("strace"):
        skip_unless_needed("STRACE", "strace is not installed")

    def trace(code: str, folder: Path) -> FileCalls:
        log = tmp_path / "strace.log"
        calls = ",".join((*_WRITES, *_RENAMES, *_FLUSHES, *_DELETIONS))
        command = ["strace", "-f", "-y", "-s", "1000", "--seccomp-bpf", "-o", str(log)]
        command += ["-e", f"trace={calls}", sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if "ptrace" in done.stderr and "not permitted" in done.stderr:
            line = done.stderr.splitlines()[0]
            skip_unless_needed("STRACE", f"strace may not trace processes: {line}")
        assert done.returncode == 0, done.stderr[-3000:]
        lines = log.read_text(errors="replace").splitlines()
        parsed = [call for line in lines if (call := _parse(line))]
        return [(name, paths) for name, paths in parsed if paths[-1].startswith(f"{folder}")]

    return trace


def _parse(line: str) -> tuple[str, list[str]] | None:
    match = re.match(r"\d+ +(\w+)\((.*)", line)
    if not match or re.search(r" = -1 E\w+ \(.*\)$", line):
        return None
    name, arguments = match.groups()
    if name in _RENAMES:
        return "rename", re.findall(r'"([^"]*)"', arguments)
    if name in _DELETIONS:  # unlinkat(5</folder>, "name", 0), or with a whole path.
        folder, path = re.match(r'(?:\w+<([^>]*)>, )?"([^"]*)"', arguments).groups()
        return "delete", [os.path.join(folder or "", path)]
    descriptor = re.match(r"\d+<([^>]*)>", arguments)
    if not descriptor:
        return None
    return ("fsync" if name in _FLUSHES else "write"), [descriptor[1]]


def unsafe_renames(calls: FileCalls) -> list[str]:
    """Returns what a power failure could lose after files got their final names.

    Before a rename, each renamed file must have been flushed after its last write, and a renamed
    folder after its last file; after the rename, the folder that contains the new name, and before
    anything in this folder is deleted. Names inside a `.partial` folder are not final.
    """
    problems, unflushed, flushed, unflushed_names = [], set(), set(), {}

    def move(paths: set[str], source: str, target: str) -> set[str]:
        return {target + path[len(source) :] if _is_in(path, source) else path for path in paths}

    for name, paths in calls:
        if name == "write":
            unflushed.add(paths[0])
            flushed -= {paths[0], os.path.dirname(paths[0])}
        elif name == "fsync":
            unflushed.discard(paths[0])
            flushed.add(paths[0])
            unflushed_names.pop(paths[0], None)
        elif name == "delete":
            problems += [
                f"{paths[0]} is deleted before the name {path} is flushed"
                for folder, path in unflushed_names.items()
                if _is_in(paths[0], folder)
            ]
        else:
            source, target = paths
            folder = os.path.dirname(target)
            if ".partial/" in target:
                flushed.discard(folder)
            else:
                inside = [path for path in sorted(unflushed) if _is_in(path, source)]
                problems += [f"{path} is renamed to {target}, but not flushed" for path in inside]
                if source not in flushed:
                    problems.append(f"{source} itself is not flushed before it becomes {target}")
                unflushed_names[folder] = target
            unflushed, flushed = (move(set_, source, target) for set_ in (unflushed, flushed))
    return problems + [f"the name {path} is not flushed" for path in unflushed_names.values()]


def _is_in(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")
