"""Reports progress on stderr: a progress bar on a terminal, plain log lines elsewhere.

A worker process cannot print to the bar of the main process. It writes its count to a small file
(`Meter`), which the main process polls (`watched`).
"""

import contextlib
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0

_SECONDS_BETWEEN_POLLS = 0.5
_AMOUNT_BETWEEN_WRITES = 4 << 20
_AMOUNT = struct.Struct("<Q")


class Progress:
    """A context manager that counts completed work and reports it.

    The reports start with `label`, for example "reading"; `unit` is the unit of the count, for
    example "B". The total amount of work is None if it is unknown.
    """

    def __init__(self, label: str, total: int | None, unit: str):
        self._label, self._total, self._unit = label, total, unit
        self._done, self._note, self._line = 0, "", ""
        self._started = self._printed = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                desc=label, total=total, unit=f" {unit}", unit_scale=True, file=sys.stderr
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, error_type: type | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif error_type is None:
            self._print()

    def add(self, amount: int, note: str = "") -> None:
        """Adds completed work to the count; `note` is shown after the rate until it is replaced."""
        self._done += amount
        self._note = note or self._note
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(amount)
        elif time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._print()

    def _print(self) -> None:
        now = time.monotonic()
        self._printed = now
        done, total = _short(self._done), "" if self._total is None else f"/{_short(self._total)}"
        rate = _short(self._done / max(now - self._started, 1e-9))
        note = f", {self._note}" if self._note else ""
        line = f"{self._label}: {done}{total} {self._unit}"
        if line != self._line:  # avoids printing the same line twice
            print(f"{line}, {rate} {self._unit}/s{note}", file=sys.stderr, flush=True)
        self._line = line


class Meter:
    """Writes the amount of work that a worker has completed to a file; a context manager."""

    def __init__(self, path: str):
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        self._done = self._written = 0

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        self._file.close()

    def add(self, amount: int) -> None:
        """Adds to the amount; the file is updated after every 4 MiB of work and at exit."""
        self._done += amount
        if self._done - self._written >= _AMOUNT_BETWEEN_WRITES:
            self._write()

    def _write(self) -> None:
        self._written = self._done
        os.pwrite(self._file.fileno(), _AMOUNT.pack(self._done), 0)


@contextlib.contextmanager
def watched(paths: list[str], progress: Progress) -> Iterator[None]:
    """Adds the work that other processes complete during the block to `progress`.

    `paths` are the files that the `Meter` of each process writes; the files are removed at the end.
    """
    finished = threading.Event()

    def watch() -> None:
        seen = 0
        while True:
            is_finished = finished.wait(_SECONDS_BETWEEN_POLLS)
            done = sum(map(_read_meter, paths))
            progress.add(done - seen)
            seen = done
            if is_finished:
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        for path in paths:
            with contextlib.suppress(OSError):
                os.remove(path)


def _read_meter(path: str) -> int:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:  # The worker has not started.
        return 0
    return _AMOUNT.unpack(content)[0] if len(content) == _AMOUNT.size else 0


def _short(number: float) -> str:
    return tqdm.format_sizeof(number) if number >= 1000 else f"{number:.3g}"
