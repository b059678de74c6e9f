"""How long work shows itself on stderr: a bar with a rate on a terminal, plain lines elsewhere."""

import sys
import time

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0


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


def _short(number: float) -> str:
    return tqdm.format_sizeof(number) if number >= 1000 else f"{number:.3g}"
