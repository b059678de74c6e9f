"""Stops all workers after the same step or evaluation batch when one of them receives SIGTERM.

A machine that is about to be preempted sends SIGTERM to one or all workers. Approximately every
SECONDS_PER_CALL seconds, the workers agree on whether to stop: between two calls of the function
that runs training steps, or between two batches of an evaluation.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

import numpy as np
import tensorflow as tf

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
        self._stop_requested = False
        self._steps = _Pace(max_steps)
        self._batches = _Pace()
        self._batches_done = 0
        self._last_agreement = 0.0

    @property
    def steps_per_call(self) -> int:
        """The maximum number of training steps in the next call."""
        return self._steps.count

    def agree(self, steps: int, seconds: float) -> bool:
        """Returns whether any worker received SIGTERM, and updates `steps_per_call`.

        `steps` is the number of steps in the last call, and `seconds` the time that it took.
        """
        return self._agree(self._steps, steps, seconds)

    def evaluate(
        self, evaluation: Callable[[AfterBatch], Mapping[str, float]]
    ) -> Mapping[str, float] | None:
        """Runs an evaluation; returns None if it was interrupted because a worker received SIGTERM.

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
            np.array([self._stop_requested, seconds / units], np.float32)
        )
        pace.learn(float(total_seconds) / self._workers)
        return bool(requests > 0)

    @contextlib.contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Handles SIGTERM during the block as a request to stop, instead of ending the process."""
        if threading.current_thread() is not threading.main_thread():  # Required by signal.
            yield
            return

        def request_stop(number: int, frame: FrameType | None) -> None:
            self._stop_requested = True

        before = signal.signal(signal.SIGTERM, request_stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


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
