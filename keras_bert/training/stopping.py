"""Stops all workers after the same step or evaluation batch when one receives SIGTERM.

A machine that is about to be preempted sends SIGTERM to one worker or to all. The loop asks
after each call into TensorFlow, which is made short enough to answer soon; an evaluation asks after
its batches, as often.
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

# A call of about this many seconds is long beside what a return to Python costs.
SECONDS_A_CALL = 2.0


class Stopping:
    """The agreement of the workers after each call into TensorFlow: stop or continue.

    Args:
        strategy: the devices.
        most: steps of a call at most.
    """

    def __init__(self, strategy: tf.distribute.Strategy, most: int):
        self._sum = all_sum(strategy)
        self._workers = num_workers(strategy)
        self._told = False
        self._steps = _Pace(most)
        self._batches = _Pace()
        self._batches_done = 0
        self._asked = 0.0

    @property
    def steps_a_call(self) -> int:
        """The steps of the next call, at most."""
        return self._steps.count

    def agree(self, steps: int, seconds: float) -> bool:
        """Decides, together with the other workers, whether to stop and how long the next call is.

        Args:
            steps: of the last call.
            seconds: that it took.

        Returns:
            Whether any worker was told to stop.
        """
        return self._agree(self._steps, steps, seconds)

    def evaluate(
        self, evaluation: Callable[[AfterBatch], Mapping[str, float]]
    ) -> Mapping[str, float] | None:
        """Runs an evaluation, or interrupts it when any worker is told to stop.

        Args:
            evaluation: calls what it is given after each batch, as often on all workers.

        Returns:
            Its figures; None if it was given up.
        """
        self._batches_done, self._asked = 0, time.monotonic()
        try:
            return evaluation(self._after_batch)
        except _GivenUp:
            return None

    def _after_batch(self) -> None:
        self._batches_done += 1
        if self._batches_done < self._batches.count and self._workers > 1:
            return
        seconds = time.monotonic() - self._asked
        told = self._agree(self._batches, self._batches_done, seconds)
        self._batches_done, self._asked = 0, time.monotonic()
        if told:
            raise _GivenUp

    def _agree(self, pace: "_Pace", units: int, seconds: float) -> bool:
        told, together = self._sum(np.array([self._told, seconds / units], np.float32))
        pace.learn(float(together) / self._workers)
        return bool(told > 0)

    @contextlib.contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Takes SIGTERM as being told to stop, during the block.

        Yields:
            Nothing.
        """
        if threading.current_thread() is not threading.main_thread():  # Python's rule.
            yield
            return

        def tell(number: int, frame: FrameType | None) -> None:
            self._told = True

        before = signal.signal(signal.SIGTERM, tell)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


class _Pace:
    """How many units of work lie between two agreements: as many as take SECONDS_A_CALL.

    Args:
        most: not more than these.
    """

    def __init__(self, most: int = 1_000_000):
        self.count = 1  # Nothing is known of their time yet.
        self._most = most
        self._has_compiled = False

    def learn(self, seconds_a_unit: float) -> None:
        """Learns from the time of the last units; the first one compiles and is ignored."""
        if self._has_compiled:
            fitting = int(SECONDS_A_CALL / max(seconds_a_unit, 1e-9))
            self.count = max(1, min(self._most, fitting))
        self._has_compiled = True


class _GivenUp(Exception):
    """Ends an evaluation from within."""
