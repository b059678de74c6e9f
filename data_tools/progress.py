"""How long work shows itself on stderr: a bar with a rate on a terminal, plain lines elsewhere.

`Progress` counts in the process that has the terminal. A worker counts in a small file, its
`Meter`, which the first process reads from time to time (`watched`).
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

_SECONDS_BETWEEN_LOOKS = 0.5
_AMOUNT_BETWEEN_NOTES = 4 << 20
_AMOUNT = struct.Struct("<Q")


class Progress:
    """Counts work done; a context manager.

    Args:
        what: what is being done, for example "reading".
        total: how much there is of it; None when not known.
        unit: what is counted, for example "B".
    """

    def __init__(self, what: str, total: int | None, unit: str):
        self._what, self._total, self._unit = what, total, unit
        self._done, self._note, self._line = 0, "", ""
        self._started = self._printed = time.monotonic()
        self._bar = None
        if sys.stderr.isatty():
            self._bar = tqdm(
                desc=what, total=total, unit=f" {unit}", unit_scale=True, file=sys.stderr
            )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, error_type: type | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif error_type is None:
            self._print()

    def add(self, amount: int, note: str = "") -> None:
        """Counts work done.

        Args:
            amount: how much more, in the unit.
            note: shown behind the rate, until the next one.
        """
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
        where = f"{self._what}: {done}{total} {self._unit}"
        if where != self._line:  # the last line may say it already
            print(f"{where}, {rate} {self._unit}/s{note}", file=sys.stderr, flush=True)
        self._line = where


class Meter:
    """What one worker has done, told to another process by a file; a context manager.

    Args:
        path: the file.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: str):
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        self._done = self._noted = 0

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        self._note()
        self._file.close()

    def add(self, amount: int) -> None:
        """Counts work done.

        Args:
            amount: how much more.
        """
        self._done += amount
        if self._done - self._noted >= _AMOUNT_BETWEEN_NOTES:
            self._note()

    def _note(self) -> None:
        self._noted = self._done
        os.pwrite(self._file.fileno(), _AMOUNT.pack(self._done), 0)


@contextlib.contextmanager
def watched(paths: list[str], progress: Progress) -> Iterator[None]:
    """Counts what workers do while the block runs.

    Args:
        paths: the files of their meters; removed in the end.
        progress: where it is counted.
    """
    over = threading.Event()

    def watch() -> None:
        seen = 0
        while True:
            is_over = over.wait(_SECONDS_BETWEEN_LOOKS)
            done = sum(map(_read_meter, paths))
            progress.add(done - seen)
            seen = done
            if is_over:
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        for path in paths:
            with contextlib.suppress(OSError):
                os.remove(path)


def _read_meter(path: str) -> int:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:  # its worker has not begun
        return 0
    return _AMOUNT.unpack(content)[0] if len(content) == _AMOUNT.size else 0


def _short(number: float) -> str:
    return tqdm.format_sizeof(number) if number >= 1000 else f"{number:.3g}"
