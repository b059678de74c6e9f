"""Stopping in time: SIGTERM in; all workers stop after the same step out.

A machine that is about to be taken away says so by SIGTERM, to one worker or to all. The loop asks
after each call into TensorFlow, which is made short enough to answer soon.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import numpy as np
import tensorflow as tf

from keras_bert.training.cluster import all_sum, num_workers

# A call of about this many seconds is long beside what a return to Python costs.
SECONDS_A_CALL = 2.0


class Stopping:
    """What the workers agree on after each call into TensorFlow.

    Args:
        strategy: the devices.
        most: steps of a call at most.
    """

    def __init__(self, strategy: tf.distribute.Strategy, most: int):
        self._sum = all_sum(strategy)
        self._workers = num_workers(strategy)
        self._most = most
        self._told = False
        self._calls = 0
        self.steps_a_call = 1  # The first compiles, and nothing is known of their time.

    def agree(self, steps: int, seconds: float) -> bool:
        """Decides, together with the other workers, whether to stop and how long the next call is.

        Args:
            steps: of the last call.
            seconds: that it took.

        Returns:
            Whether any worker was told to stop.
        """
        told, seconds_a_step = self._sum(np.array([self._told, seconds / steps], np.float32))
        self._calls += 1
        if self._calls > 1:
            fitting = SECONDS_A_CALL * self._workers / max(float(seconds_a_step), 1e-9)
            self.steps_a_call = max(1, min(self._most, int(fitting)))
        return told > 0

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
