"""Logs a line at regular intervals while training steps run and nothing else is logged."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

SECONDS = 10.0  # The longest time without a sign of progress.
_SECONDS_TO_CHECK = 1.0


class Heartbeat:
    """A thread that reports progress during long calls, such as a compilation.

    While a call runs, the thread calls `report` every `SECONDS` seconds with the number of seconds
    since the call started; `restart_clock` restarts this interval.
    """

    def __init__(self, report: Callable[[float], None]):
        self._report = report
        self._started: float | None = None  # None while no call runs.
        self._closed = threading.Event()
        self.restart_clock()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def restart_clock(self) -> None:
        """Postpones the next report, because something else was logged."""
        self._last = time.monotonic()

    @contextlib.contextmanager
    def during_call(self) -> Iterator[None]:
        """Reports progress while the block runs."""
        self._started = time.monotonic()
        try:
            yield
        finally:
            self._started = None

    def close(self) -> None:
        """Stops the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_SECONDS_TO_CHECK):
            now, started = time.monotonic(), self._started
            if started is not None and now - self._last >= SECONDS:
                self._last = now
                self._report(now - started)
