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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from keras_bert.server.metrics import Metrics
from keras_bert.server.protocol import Arrays, RestError
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
    """A request, or a slice of a large one. Items with the same key can be joined; None cannot."""

    version: Version
    signature: str
    inputs: Arrays
    rows: int
    key: tuple | None
    answer: asyncio.Future
    arrival: float


class Batcher:
    """Runs requests in batches, in a thread pool."""

    def __init__(self, settings: Settings, metrics: Metrics):
        self._settings = settings
        self._timeout = settings.batch_timeout_ms / 1000
        self._free = settings.num_batch_threads
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(settings.num_batch_threads, "batch")
        self._queue: dict[_Item, None] = {}  # An ordered set: the oldest item is the first one.
        self._tasks: set[asyncio.Task] = set()
        self._is_scheduled = False

    def require_room(self) -> None:
        """Raises a RestError with status 503 if the queue is full."""
        if len(self._queue) >= self._settings.max_waiting:
            raise RestError(
                "The batch scheduling queue to which this task was submitted is full", 503
            )

    def check(self, version: Version, signature: str, inputs: Arrays) -> None:
        """Checks the number of rows of a request, and the size of its response.

        A response to several rows may have too many values, because rows are padded to the longest
        one. A dimension of unknown size, such as the number of entities, is at most the length of
        the longest text or list of the request. May be called in any thread.

        Raises:
            RestError: the inputs have different or too many rows, or the padded response could
                have too many values.
        """
        if signature not in version.batched:
            return
        rows = len(next(iter(inputs.values())))
        if any(len(array) != rows for array in inputs.values()):
            counts = ", ".join(f"{name} has {len(array)}" for name, array in inputs.items())
            raise RestError(f"Inputs must have equal numbers of rows: {counts}")
        if rows > self._settings.max_request_rows:
            raise RestError(
                f"The request has {rows} rows; expected at most {self._settings.max_request_rows}"
            )
        if rows <= 1:
            return
        lengths = _row_lengths(inputs, rows)
        values = np.zeros(rows)  # The number of values of each row without padding.
        longest = 0  # The number of values of each row with padding.
        for shape in version.output_shapes[signature]:
            sizes = (None,) if shape is None else shape[1:]
            unknown, fixed = sizes.count(None), math.prod(size for size in sizes if size)
            values += fixed * lengths.astype(float) ** unknown
            longest += fixed * int(lengths.max()) ** unknown
        limit = min(
            self._settings.max_response_values,
            max(_FREE_PADDING, _MAX_PADDING_RATIO * int(values.sum())),
        )
        if rows * longest > limit:
            raise RestError(
                f"The request has {rows} rows, and a text or list of length {lengths.max()}; all "
                f"rows of the response would be padded to the longest, up to {rows * longest} "
                f"values; expected at most {limit}; send fewer rows, or long texts in separate "
                "requests"
            )

    async def run(
        self,
        version: Version,
        signature: str,
        inputs: Arrays,
        set_answer_size: Callable[[int], None],
    ) -> Arrays:
        """Runs a request, possibly in one batch with others, and returns the outputs for its rows.

        `set_answer_size` is called with the bytes of the outputs that exist so far.

        Raises:
            RestError: the request itself fails, the queue is full, or all answers together are too
                large.
        """
        self.require_room()
        rows = len(next(iter(inputs.values()))) if signature in version.batched else 0
        if rows <= self._settings.max_batch_size:
            outputs, size = await self._submit(version, signature, inputs, rows)
            set_answer_size(size)
            return outputs
        parts, total = [], 0
        for start in range(0, rows, self._settings.max_batch_size):
            end = min(start + self._settings.max_batch_size, rows)
            part = {name: array[start:end] for name, array in inputs.items()}
            outputs, size = await self._submit(version, signature, part, end - start)
            _check_rows(outputs, end - start)
            parts.append(outputs)
            total += size
            set_answer_size(total)
        return await asyncio.to_thread(_stack_slices, parts)

    def close(self) -> None:
        """Shuts the threads down after the batches that are running."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(
        self, version: Version, signature: str, inputs: Arrays, rows: int
    ) -> asyncio.Future[tuple[Arrays, int]]:
        loop = asyncio.get_running_loop()
        key = None
        if rows and _is_short(inputs):
            shapes = ((name, array.shape[1:]) for name, array in inputs.items())
            key = (version, signature, *shapes)
        item = _Item(version, signature, inputs, rows, key, loop.create_future(), loop.time())
        self._queue[item] = None
        self._metrics.queue.set(len(self._queue))
        # Its client may stop waiting.
        item.answer.add_done_callback(lambda _: self._remove_from_queue(item))
        self._schedule_batches()
        return item.answer

    def _remove_from_queue(self, item: _Item) -> None:
        self._queue.pop(item, None)
        self._metrics.queue.set(len(self._queue))

    def _schedule_batches(self) -> None:
        # `_start_batches` runs after the event loop has handled the data that it has already read,
        # so that requests that arrived together are batched together.
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_batches)

    def _start_batches(self) -> None:
        self._is_scheduled = False
        while self._free and (batch := self._next_batch()):
            for item in batch:
                self._remove_from_queue(item)
            self._free -= 1
            task = asyncio.get_running_loop().create_task(self._run_batch(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_batch(self) -> list[_Item]:
        """Returns the items of the next batch; if none is ready, [], and checks again later."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        groups: dict[object, list[_Item]] = {}
        for item in self._queue:
            groups.setdefault(item.key or item, []).append(item)
        # The group with the oldest item is first, so that none starves behind a busier one.
        for group in groups.values():
            ends = np.cumsum([item.rows for item in group])
            is_full = ends[-1] >= self._settings.max_batch_size
            if is_full or group[0].key is None or now - group[0].arrival >= self._timeout:
                fitting = np.searchsorted(ends, self._settings.max_batch_size, "right")
                return group[: max(1, fitting)]
        if self._queue:
            oldest = next(iter(self._queue))
            loop.call_later(oldest.arrival + self._timeout - now, self._schedule_batches)
        return []

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

    def _run(self, batch: list[_Item]) -> list[tuple[Arrays, int]]:
        """Returns the outputs of each request, and their size in bytes."""
        started = time.perf_counter()
        first = batch[0]
        inputs = first.inputs
        if len(batch) > 1:
            inputs = {
                name: np.concatenate([item.inputs[name] for item in batch]) for name in inputs
            }
        outputs = first.version.run(first.signature, inputs)
        self._metrics.batch_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_rows.observe(sum(item.rows for item in batch))
        parts = [outputs]
        if len(batch) > 1:
            _check_rows(outputs, sum(item.rows for item in batch))
            ends = np.cumsum([item.rows for item in batch])[:-1]
            split = {name: np.split(array, ends) for name, array in outputs.items()}
            parts = [{name: split[name][index] for name in split} for index in range(len(batch))]
        return [(part, _num_bytes(part)) for part in parts]


def _set_result(answer: asyncio.Future, result: tuple[Arrays, int] | Exception) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _text_bytes(arrays: Arrays) -> int:
    """Returns the total length of all texts in bytes."""
    texts = (array for array in arrays.values() if array.dtype == object)
    return sum(sum(map(len, array.ravel())) for array in texts)


def _num_bytes(outputs: Arrays) -> int:
    return sum(array.nbytes for array in outputs.values()) + _text_bytes(outputs)


def _is_short(inputs: Arrays) -> bool:
    """Returns whether a request may be joined with others."""
    size = sum(array.size for array in inputs.values() if array.dtype == object)
    return size <= _MAX_JOINED_BYTES and _text_bytes(inputs) <= _MAX_JOINED_BYTES


def _row_lengths(inputs: Arrays, rows: int) -> np.ndarray:
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


def _check_rows(outputs: Arrays, rows: int) -> None:
    """Raises ValueError if an output does not have one row for each of `rows` input rows."""
    for name, array in outputs.items():
        if not array.ndim or len(array) != rows:
            raise ValueError(
                f"output {name}: shape {array.shape}; expected {rows} rows, one for each input row"
            )


def _stack_slices(parts: list[Arrays]) -> Arrays:
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
