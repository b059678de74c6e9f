"""Runs the programs of keras_bert as a user does, at low priority.

A program that is stopped resumes when the same command runs again, so that this module only has to
pass a stop on to it: SIGTERM of this process becomes SIGTERM of the program, which then saves a
checkpoint. If this process is killed, the kernel kills the program too, so that no program of an
earlier start holds the lock of a folder.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workers import ROOT

NICENESS = 19  # The lowest priority.
STOPPED = 75  # The exit code of the study if the same command resumes it.
_PR_SET_PDEATHSIG = 1


class ProgramFailed(Exception):
    """Raised if a program ends with another exit code than 0."""


class Stopped(Exception):
    """Raised if this process received SIGTERM or SIGINT; the program in progress has ended."""


@dataclass(frozen=True)
class Usage:
    """The time of a program: wall-clock seconds, and CPU seconds of all threads."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


def run_program(program: str, flags: Mapping[str, object], log: Path) -> Usage:
    """Runs a program with flags, and appends its output to a file.

    `program` is a file in the repository, or a module that is run with -m and its arguments.

    Raises:
        ProgramFailed: the program failed; the message has the last lines of its output.
        Stopped: this process was asked to stop.
    """
    name = [ROOT / program] if program.endswith(".py") else ["-m", *program.split()]
    command = [sys.executable, *map(str, name)]
    command += [f"--{flag}={_text(value)}" for flag, value in flags.items()]
    # Only modules of this folder need benchmarks/, whose files have names of other packages.
    path = [ROOT, ROOT / "benchmarks"] if program.startswith("ablation.") else [ROOT]
    log.parent.mkdir(parents=True, exist_ok=True)
    start, used = time.monotonic(), _cpu_seconds()
    with log.open("ab") as file:
        file.write(f"\n$ {' '.join(command)}\n".encode())
        file.flush()
        code = run_command(command, file, subprocess.STDOUT, path)
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
        raise ProgramFailed(
            f"{program}: exit code {code}; the last lines of {log}:\n" + "\n".join(lines)
        )
    return Usage(time.monotonic() - start, _cpu_seconds() - used)


def run_command(
    command: Sequence[object], stdout: IO, stderr: IO | int | None = None, path: Sequence[Path] = ()
) -> int:
    """Runs a command at low priority, and returns its exit code.

    Args:
        command: the command.
        stdout: the file for its output.
        stderr: where its errors go, as in `subprocess.Popen`; None for the terminal.
        path: the folders of its modules.

    Raises:
        Stopped: this process was asked to stop; the command has ended.
    """
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=stdout,
        stderr=stderr,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        start_new_session=True,
        preexec_fn=_lower_priority,
    )
    return _wait(process)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _wait(process: subprocess.Popen) -> int:
    """Waits for a program; if this process is asked to stop, stops the program first."""
    try:
        with _stop_signals():
            return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


@contextlib.contextmanager
def _stop_signals() -> Iterator[None]:
    """Raises Stopped in the block if SIGTERM or SIGINT arrives."""

    def stop(number: int, _: object) -> None:
        raise Stopped(signal.Signals(number).name)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _lower_priority() -> None:
    """Lowers the priority of a program, which ends with this process; runs in the new process.

    Linux shares the CPU between sessions first, so that the session also gets the lowest priority.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(f"{NICENESS}")


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
