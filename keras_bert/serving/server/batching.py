"""Concurrent requests to batches: arrays of single requests in, their own rows of the answer out.

Requests of one version, signature and inner shape are joined along the first dimension. A batch
starts as soon as fewer than `in_flight` run: the requests that came while the last one ran. So an
idle server never waits, and a busy one has large batches. A batch that fails is run again request
by request, so that a bad one fails alone.
"""

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from keras_bert.serving.server.json_text import RestError
from keras_bert.serving.server.metrics import Metrics
from keras_bert.serving.server.protocol import Arrays
from keras_bert.serving.server.versions import Version


@dataclass(eq=False, slots=True)
class _Item:
    version: Version
    signature: str
    inputs: Arrays
    rows: int
    answer: asyncio.Future
    asked: float


class Batcher:
    """Runs requests in batches, in threads.

    Args:
        max_rows: the most rows that requests are joined to; a larger request runs alone.
        timeout: seconds that a request may wait for others while no batch is full.
        in_flight: batches that run at a time.
        max_waiting: requests that may wait.
        metrics: where batches are counted.
    """

    def __init__(
        self, max_rows: int, timeout: float, in_flight: int, max_waiting: int, metrics: Metrics
    ):
        self._max_rows = max_rows
        self._timeout = timeout
        self._free = in_flight
        self._max_waiting = max_waiting
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(in_flight, "batch")
        self._groups: dict[tuple, deque[_Item]] = {}
        self._waiting = 0
        self._tasks: set[asyncio.Task] = set()
        self._pump_due = False

    async def run(self, version: Version, signature: str, inputs: Arrays) -> Arrays:
        """Runs one request with others.

        Args:
            version: the version that it is for.
            signature: the signature's name.
            inputs: an array an input.

        Returns:
            An array an output: this request's rows.

        Raises:
            RestError: the request's own error, or too many wait.
        """
        if self._waiting >= self._max_waiting:
            raise RestError(
                503, "The batch scheduling queue to which this task was submitted is full"
            )
        loop = asyncio.get_running_loop()
        rows = _rows(version, signature, inputs)
        # A request that cannot be joined is a group of its own.
        key = _key(version, signature, inputs) if rows else (object(),)
        item = _Item(version, signature, inputs, rows, loop.create_future(), loop.time())
        self._groups.setdefault(key, deque()).append(item)
        self._waiting += 1
        self._metrics.queue.set(self._waiting)
        self._pump_soon()
        return await item.answer

    def close(self) -> None:
        """Ends the threads once they have run what they were given."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _pump_soon(self) -> None:
        # After what the loop has already read: requests that came together go together.
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        loop = asyncio.get_running_loop()
        while self._free and self._groups:
            # `asked` orders groups, so none waits for ever behind a busier one.
            oldest = sorted(self._groups, key=lambda key: self._groups[key][0].asked)
            now = loop.time()
            ready = next((key for key in oldest if self._is_ready(self._groups[key], now)), None)
            if ready is None:
                first = self._groups[oldest[0]][0]
                loop.call_later(first.asked + self._timeout - now, self._pump_soon)
                return
            batch = self._take(ready)
            if not batch:
                continue
            self._free -= 1
            task = loop.create_task(self._run_batch(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _is_ready(self, group: deque[_Item], now: float) -> bool:
        if now - group[0].asked >= self._timeout or not group[0].rows:
            return True
        return sum(item.rows for item in group) >= self._max_rows

    def _take(self, key: tuple) -> list[_Item]:
        group, batch, rows = self._groups[key], [], 0
        while group and (not batch or rows + group[0].rows <= self._max_rows):
            item = group.popleft()
            self._waiting -= 1
            if not item.answer.done():  # Its client's time may be over.
                batch.append(item)
                rows += item.rows
        if not group:
            del self._groups[key]
        self._metrics.queue.set(self._waiting)
        return batch

    async def _run_batch(self, batch: list[_Item]) -> None:
        try:
            if not await self._answer(batch):
                for item in batch:
                    await self._answer([item])
        finally:
            self._free += 1
            self._pump_soon()

    async def _answer(self, batch: list[_Item]) -> bool:
        """Answers requests with one run; False, with none answered, if that of several fails."""
        loop = asyncio.get_running_loop()
        try:
            parts = await loop.run_in_executor(self._threads, self._run, batch)
        except Exception as error:
            if len(batch) > 1:
                return False
            _settle(batch[0].answer, error)
            return True
        for item, part in zip(batch, parts, strict=True):
            _settle(item.answer, part)
        return True

    def _run(self, batch: list[_Item]) -> list[Arrays]:
        started = time.perf_counter()
        first = batch[0]
        outputs = first.version.run(first.signature, _join([item.inputs for item in batch]))
        self._metrics.batch_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_rows.observe(sum(item.rows for item in batch))
        return _split(outputs, [item.rows for item in batch])


def _rows(version: Version, signature: str, inputs: Arrays) -> int:
    """The request's rows, or 0 if it cannot be joined with others."""
    expected = version.signatures[signature]
    if any(not expected[name].shape or expected[name].shape[0] is not None for name in inputs):
        return 0
    lengths = {len(array) for array in inputs.values()}
    return lengths.pop() if len(lengths) == 1 else 0


def _key(version: Version, signature: str, inputs: Arrays) -> tuple:
    return version, signature, *((name, array.shape[1:]) for name, array in inputs.items())


def _join(inputs: list[Arrays]) -> Arrays:
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([one[name] for one in inputs]) for name in inputs[0]}


def _split(outputs: Arrays, rows: list[int]) -> list[Arrays]:
    if len(rows) == 1:
        return [outputs]
    for name, array in outputs.items():
        if not array.ndim or len(array) != sum(rows):
            raise ValueError(f"output {name} has not a row for each of the inputs")
    ends = np.cumsum(rows)[:-1]
    parts = {name: np.split(array, ends) for name, array in outputs.items()}
    return [{name: parts[name][index] for name in parts} for index in range(len(rows))]


def _settle(answer: asyncio.Future, result: Arrays | Exception) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
