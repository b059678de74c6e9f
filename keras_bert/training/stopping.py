"""Stops all workers after the same step or evaluation batch when one of them receives SIGTERM.

A machine that is about to be preempted sends SIGTERM to one or all workers. Approximately every
SECONDS_PER_CALL seconds, the workers agree on whether to stop: between two calls of the function
that runs training steps, or between two batches of an evaluation. Ctrl-C stops a single worker in
the same way; with several workers, it ends the worker at once.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from absl import logging

from keras_bert.common.interrupts import INTERRUPTED, is_python_handler
from keras_bert.training.cluster import all_sum, num_workers
from keras_bert.training.objective import AfterBatch

# Long enough that the cost of returning to Python is negligible.
SECONDS_PER_CALL = 2.0


class Stopping:
    """Decides together with all other workers whether to stop.

    `max_steps` is the maximum number of training steps in one call; the workers decide after each
    call.
    """

    def __init__(self, strategy: tf.distribute.Strategy, max_steps: int):
        self._sum = all_sum(strategy)
        self._workers = num_workers(strategy)
        self._received: set[int] = set()
        self._steps = _Pace(max_steps)
        self._batches = _Pace()
        self._batches_done = 0
        self._last_agreement = 0.0

    @property
    def steps_per_call(self) -> int:
        """The maximum number of training steps in the next call."""
        return self._steps.count

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C requested the stop."""
        return signal.SIGINT in self._received

    @property
    def unanswered(self) -> bool:
        """Whether a signal asks the only worker to stop, although `agree` may not know it yet."""
        return self._workers == 1 and bool(self._received)

    def agree(self, steps: int, seconds: float) -> bool:
        """Returns whether any worker must stop, and updates `steps_per_call`.

        `steps` is the number of steps in the last call, and `seconds` the time that it took.
        """
        return self._agree(self._steps, steps, seconds)

    def evaluate(
        self, evaluation: Callable[[AfterBatch], Mapping[str, float]]
    ) -> Mapping[str, float] | None:
        """Runs an evaluation; returns None if it was interrupted because a worker must stop.

        `evaluation` must call its argument after each batch, equally often on all workers.
        """
        self._batches_done, self._last_agreement = 0, time.monotonic()
        try:
            return evaluation(self._after_batch)
        except _StopRequested:
            return None

    def _after_batch(self) -> None:
        self._batches_done += 1
        if self._batches_done < self._batches.count and self._workers > 1:
            return
        seconds = time.monotonic() - self._last_agreement
        stop_requested = self._agree(self._batches, self._batches_done, seconds)
        self._batches_done, self._last_agreement = 0, time.monotonic()
        if stop_requested:
            raise _StopRequested

    def _agree(self, pace: "_Pace", units: int, seconds: float) -> bool:
        requests, total_seconds = self._sum(
            np.array([bool(self._received), seconds / units], np.float32)
        )
        pace.learn(float(total_seconds) / self._workers)
        return bool(requests > 0)

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handles SIGTERM and Ctrl-C during the block as requests to stop.

        A second Ctrl-C ends the process at once. With several workers, or if SIGINT has a handler
        that is neither Python's nor of this package, Ctrl-C is not handled.
        """
        if threading.current_thread() is not threading.main_thread():  # Required by signal.
            yield
            return
        handled = {signal.SIGTERM}
        if self._workers == 1 and is_python_handler(signal.getsignal(signal.SIGINT)):
            handled.add(signal.SIGINT)
        # Python runs handlers only between two operations of the main thread, and compilation is
        # one operation. The thread sees a signal immediately.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._watch, args=(reader, handled), daemon=True)
        thread.start()
        before = {
            number: signal.signal(number, lambda number, frame: self._received.add(number))
            for number in handled
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            os.write(writer, b"\0")  # Ends the thread, after all signals before.
            thread.join()
            os.close(writer)
            os.close(reader)

    def _watch(self, reader: int, handled: set[int]) -> None:
        interrupts = 0
        while number := os.read(reader, 1)[0]:
            if number not in handled:
                continue
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                line = f"{os.path.basename(sys.argv[0])}: interrupted: unsaved work is lost\n"
                with contextlib.suppress(OSError):
                    os.write(2, os.fsencode(line))
                os._exit(INTERRUPTED)
            self._received.add(number)
            again = "; press Ctrl-C again to stop without it"
            logging.info(
                "%s: saving a checkpoint after the current step or evaluation batch%s",
                *(("Ctrl-C", again) if number == signal.SIGINT else ("SIGTERM", "")),
            )


class _Pace:
    """Chooses a number of steps or batches between agreements that takes SECONDS_PER_CALL."""

    def __init__(self, max_count: int = 1_000_000):
        self.count = 1  # The duration of a step or batch is not known yet.
        self._max_count = max_count
        self._has_compiled = False

    def learn(self, seconds_per_unit: float) -> None:
        """Updates `count` from the time per step or batch; ignores the first call (compilation)."""
        if self._has_compiled:
            units_per_call = int(SECONDS_PER_CALL / max(seconds_per_unit, 1e-9))
            self.count = max(1, min(self._max_count, units_per_call))
        self._has_compiled = True


class _StopRequested(Exception):
    """Raised within an evaluation to interrupt it."""
