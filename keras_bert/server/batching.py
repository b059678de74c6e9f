"""Runs concurrent requests in batches, and returns the rows of each request.

Requests for the same version and signature whose inputs have the same shapes, except for the first
dimension, are joined along it. A batch starts when fewer than `num_batch_threads` batches run, and
it is full or its first request has waited for `batch_timeout_ms`. If a batch fails, its two halves
run separately, so that in the end only the invalid request fails.

A request with more rows than a batch runs in slices. Each slice queues behind the requests that
arrived in the meantime. The remaining slices are dropped if the client no longer waits.
"""

import asyncio
import math
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from keras_bert.server.bodies import HeldAnswer
from keras_bert.server.errors import RestError, bad_request
from keras_bert.server.metrics import Metrics
from keras_bert.server.protocol import Arrays, too_many_rows
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Version

# The maximum text bytes of a request that is joined with others. The outputs of a longer request,
# such as its entities, could be so wide that the other answers of the batch would be mostly
# padding.
_MAX_JOINED_BYTES = 1 << 13
# A response of more than _FREE_PADDING values may have at most _MAX_PADDING_RATIO times as many
# values as without the padding, so that one long text in a request of many short ones does not
# produce a response a thousand times as large as the request. The padding of a request of
# _MAX_PADDING_RATIO rows or fewer cannot be that large.
_FREE_PADDING = 1 << 20
_MAX_PADDING_RATIO = 64


@dataclass(eq=False, slots=True)
class _Item:
    version: Version
    signature: str
    inputs: Arrays
    rows: int
    can_join: bool
    answer: asyncio.Future
    arrival: float
    is_queued: bool = True


class Batcher:
    """Runs requests in batches, in a thread pool."""

    def __init__(self, settings: Settings, metrics: Metrics):
        self._settings = settings
        self._timeout = settings.batch_timeout_ms / 1000
        self._free = settings.num_batch_threads
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(settings.num_batch_threads, "batch")
        self._groups: dict[tuple, deque[_Item]] = {}
        self._waiting = 0
        self._tasks: set[asyncio.Task] = set()
        self._is_scheduled = False

    def require_room(self) -> None:
        """Raises a RestError with status 503 if the queue is full."""
        if self._waiting >= self._settings.max_waiting:
            raise RestError(
                503, "The batch scheduling queue to which this task was submitted is full"
            )

    async def run(
        self, version: Version, signature: str, inputs: Arrays, held: HeldAnswer
    ) -> Arrays:
        """Runs a request, possibly in one batch with others, and returns the outputs for its rows.

        The outputs that exist so far count as `held`.

        Raises:
            RestError: the request itself fails, it has too many rows, its answer could be too
                large, the queue is full, or all answers together are too large.
        """
        rows = count_rows(inputs) if signature in version.batched else 0
        if rows > self._settings.max_request_rows:
            raise too_many_rows(rows, self._settings.max_request_rows)
        self._check_width(version, signature, inputs, rows)
        self.require_room()
        if rows <= self._settings.max_batch_size:
            outputs = await self._submit(version, signature, inputs, rows)
            held.set_size(num_bytes(outputs))
            return outputs
        parts = []
        for start in range(0, rows, self._settings.max_batch_size):
            end = min(start + self._settings.max_batch_size, rows)
            part = {name: array[start:end] for name, array in inputs.items()}
            parts.append(await self._submit(version, signature, part, end - start))
            check_rows(parts[-1], end - start)
            held.set_size(held.size + num_bytes(parts[-1]))
        return stack_slices(parts)

    def _check_width(self, version: Version, signature: str, inputs: Arrays, rows: int) -> None:
        """Rejects a request of several rows whose padded answer could have too many values.

        A dimension of unknown size, such as the number of entities, is at most the length of the
        longest text or list of the request.
        """
        if rows <= 1:
            return
        lengths = row_lengths(inputs, rows)
        values = np.zeros(rows)  # The number of values of each row without padding.
        longest = 0  # The number of values of each row with padding.
        for shape in version.output_shapes[signature]:
            sizes = (None,) if shape is None else shape[1:]
            unknown, known = sizes.count(None), math.prod(size for size in sizes if size)
            values += known * lengths.astype(float) ** unknown
            longest += known * int(lengths.max()) ** unknown
        limit = min(
            self._settings.max_response_values,
            max(_FREE_PADDING, _MAX_PADDING_RATIO * int(values.sum())),
        )
        if rows * longest > limit:
            raise bad_request(
                f"The request has {rows} rows, and a text or list of length {lengths.max()}; all "
                f"rows of the response would be padded to the longest, up to {rows * longest} "
                f"values; expected at most {limit}; send fewer rows, or long texts in separate "
                "requests"
            )

    def close(self) -> None:
        """Shuts the threads down after the batches that are running."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(
        self, version: Version, signature: str, inputs: Arrays, rows: int
    ) -> asyncio.Future[Arrays]:
        loop = asyncio.get_running_loop()
        can_join = rows > 0 and text_bytes(inputs) <= _MAX_JOINED_BYTES
        # A request that is not joined has its own group.
        key = _key(version, signature, inputs) if can_join else (object(),)
        answer, arrival = loop.create_future(), loop.time()
        item = _Item(version, signature, inputs, rows, can_join, answer, arrival)
        self._groups.setdefault(key, deque()).append(item)
        self._change_waiting(1)
        item.answer.add_done_callback(lambda _: self._remove_from_queue(key, item))
        self._schedule_batches()
        return item.answer

    def _remove_from_queue(self, key: tuple, item: _Item) -> None:
        """Removes a request whose client no longer waits, if it is still queued."""
        if not item.is_queued:
            return
        item.is_queued = False
        self._groups[key].remove(item)
        if not self._groups[key]:
            del self._groups[key]
        self._change_waiting(-1)

    def _change_waiting(self, change: int) -> None:
        self._waiting += change
        self._metrics.queue.set(self._waiting)

    def _schedule_batches(self) -> None:
        # `_start_batches` runs after the event loop has handled the data that it has already read,
        # so that requests that arrived together are batched together.
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_batches)

    def _start_batches(self) -> None:
        self._is_scheduled = False
        loop = asyncio.get_running_loop()
        while self._free and self._groups:
            # Groups are ordered by `arrival`, so that no group starves behind a busier one.
            oldest = sorted(self._groups, key=lambda key: self._groups[key][0].arrival)
            now = loop.time()
            ready = next((key for key in oldest if self._is_ready(self._groups[key], now)), None)
            if ready is None:
                first = self._groups[oldest[0]][0]
                loop.call_later(first.arrival + self._timeout - now, self._schedule_batches)
                return
            self._free -= 1
            task = loop.create_task(self._run_batch(self._take(ready)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _is_ready(self, group: deque[_Item], now: float) -> bool:
        if now - group[0].arrival >= self._timeout or not group[0].can_join:
            return True
        return sum(item.rows for item in group) >= self._settings.max_batch_size

    def _take(self, key: tuple) -> list[_Item]:
        group, batch, rows = self._groups[key], [], 0
        while group and (not batch or rows + group[0].rows <= self._settings.max_batch_size):
            item = group.popleft()
            item.is_queued = False
            batch.append(item)
            rows += item.rows
        if not group:
            del self._groups[key]
        self._change_waiting(-len(batch))
        return batch

    async def _run_batch(self, batch: list[_Item]) -> None:
        try:
            await self._answer(batch)
        finally:
            self._free += 1
            self._schedule_batches()

    async def _answer(self, batch: list[_Item]) -> None:
        """Runs requests as one batch; if it fails, runs each half separately."""
        batch = [item for item in batch if not item.answer.done()]
        if not batch:
            return
        loop = asyncio.get_running_loop()
        try:
            parts = await loop.run_in_executor(self._threads, self._run, batch)
        except Exception as error:
            if len(batch) == 1:
                _set_result(batch[0].answer, error)
                return
            middle = len(batch) // 2
            await self._answer(batch[:middle])
            await self._answer(batch[middle:])
            return
        for item, part in zip(batch, parts, strict=True):
            _set_result(item.answer, part)

    def _run(self, batch: list[_Item]) -> list[Arrays]:
        started = time.perf_counter()
        first = batch[0]
        inputs = join_requests([item.inputs for item in batch])
        outputs = first.version.run(first.signature, inputs)
        self._metrics.batch_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_rows.observe(sum(item.rows for item in batch))
        return split_rows(outputs, [item.rows for item in batch])


def _key(version: Version, signature: str, inputs: Arrays) -> tuple:
    return version, signature, *((name, array.shape[1:]) for name, array in inputs.items())


def _set_result(answer: asyncio.Future, result: Arrays | Exception) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def count_rows(inputs: Arrays) -> int:
    """Returns the number of rows; raises a RestError if the inputs have different numbers."""
    (first, array), *others = inputs.items()
    for name, other in others:
        if len(other) != len(array):
            raise bad_request(
                "Batching Run() input tensors must have equal 0th-dimension size: "
                f"{first} has {len(array)}, {name} has {len(other)}"
            )
    return len(array)


def text_bytes(inputs: Arrays) -> int:
    """Returns the total length of all texts of a request in bytes."""
    texts = (array for array in inputs.values() if array.dtype == object)
    return sum(sum(map(len, array.ravel())) for array in texts)


def num_bytes(outputs: Arrays) -> int:
    """Returns the size of arrays in bytes, with that of their texts."""
    return sum(array.nbytes for array in outputs.values()) + text_bytes(outputs)


def row_lengths(inputs: Arrays, rows: int) -> np.ndarray:
    """Returns the length of each row [rows]: of its longest list, or of its longest text in bytes.

    There must be at least one row.
    """
    lengths = np.zeros(rows, np.int64)
    for array in inputs.values():
        lengths = np.maximum(lengths, max(array.shape[1:], default=1))
        if array.dtype == object:
            texts = np.array(list(map(len, array.ravel())), np.int64).reshape(rows, -1)
            lengths = np.maximum(lengths, texts.max(1, initial=0))
    return lengths


def join_requests(inputs: list[Arrays]) -> Arrays:
    """Concatenates the rows of requests with inputs of the same names and inner shapes."""
    if len(inputs) == 1:
        return inputs[0]
    return {name: np.concatenate([one[name] for one in inputs]) for name in inputs[0]}


def split_rows(outputs: Arrays, rows: list[int]) -> list[Arrays]:
    """Splits the outputs of a batch into answers; `rows` are the numbers of rows of the requests.

    Raises:
        ValueError: an output of a batch of several requests does not have one row for each input
            row.
    """
    if len(rows) == 1:
        return [outputs]
    check_rows(outputs, sum(rows))
    ends = np.cumsum(rows)[:-1]
    parts = {name: np.split(array, ends) for name, array in outputs.items()}
    return [{name: parts[name][index] for name in parts} for index in range(len(rows))]


def check_rows(outputs: Arrays, rows: int) -> None:
    """Raises ValueError if an output does not have one row for each of `rows` input rows."""
    for name, array in outputs.items():
        if not array.ndim or len(array) != rows:
            raise ValueError(
                f"output {name}: shape {array.shape}; expected {rows} rows, one for each input row"
            )


def stack_slices(parts: list[Arrays]) -> Arrays:
    """Concatenates slices of an answer; pads them to the widest with "", -1 (integers) or 0."""
    stacked = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
        widest = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
        stacked[name] = np.concatenate([_pad(array, widest) for array in arrays])
    return stacked


def _pad(array: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    padding = {"O": b"", "i": -1}.get(array.dtype.kind, 0)
    padded = np.full((len(array), *sizes), padding, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded
