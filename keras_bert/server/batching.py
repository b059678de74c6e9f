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

import numpy as np

from keras_bert.server.metrics import Metrics
from keras_bert.server.protocol import Arrays, RestError
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Version

# The maximum text bytes of a request that is joined with others. The outputs of a longer request,
# such as its entities, could be so wide that the other answers of the batch would be mostly
# padding.
_MAX_JOINED_BYTES = 1 << 13


class _Item:
    """A request, or a slice of a large one. Items with the same key can be joined; None cannot."""

    __slots__ = ("answer", "arrival", "inputs", "key", "rows", "signature", "version")

    def __init__(
        self,
        version: Version,
        signature: str,
        inputs: Arrays,
        rows: int,
        key: tuple | None,
        answer: asyncio.Future,
        arrival: float,
    ):
        self.version, self.signature, self.inputs = version, signature, inputs
        self.rows, self.key, self.answer, self.arrival = rows, key, answer, arrival


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

    def check(self, version: Version, signature: str, inputs: Arrays) -> None:
        """Checks the number of rows of a request, its texts, and the size of its response.

        Rows of a response are padded to the longest one. A dimension of variable size, such as the
        number of entities, is at most the length of the longest text or list of the request. May be
        called in any thread.
        """
        rows = len(next(iter(inputs.values())))
        if rows > self._settings.max_request_rows:
            raise RestError(
                f"The request has {rows} rows; expected at most {self._settings.max_request_rows}"
            )
        size, limit = _text_bytes(inputs), self._settings.max_request_bytes
        if size > limit:  # The query of a ranking counts for each text, because it is read with it.
            raise RestError(
                f"The texts have {size} bytes, with the query for each of {rows} texts; expected "
                f"at most {limit}; send fewer texts per request",
                413,
            )
        sizes = [size for array in inputs.values() for size in array.shape[1:]]
        texts = [array for array in inputs.values() if array.dtype == object]
        longest = max(sizes + [len(text) for array in texts for text in array.flat], default=1)
        values = rows * sum(
            math.prod(longest if size < 0 else size for size in shape[1:])
            for _, shape in version.signatures[signature]["outputs"].values()
        )
        if rows > 1 and values > self._settings.max_response_values:
            raise RestError(
                f"The request has {rows} rows, and a text or list of length {longest}; all rows of "
                f"the response would be padded to the longest, up to {values} values; expected at "
                f"most {self._settings.max_response_values}; send fewer rows, or long texts in "
                "separate requests"
            )

    async def run(
        self,
        version: Version,
        signature: str,
        inputs: Arrays,
        set_size: Callable[[int], None],
    ) -> Arrays:
        """Runs a request, possibly in one batch with others, and returns the outputs for its rows.

        `set_size` is called with the bytes of the outputs that exist so far.
        """
        rows, step = len(next(iter(inputs.values()))), self._settings.max_batch_size
        slices, size = [], 0
        for start in range(0, max(rows, 1), step):
            part = {name: array[start : start + step] for name, array in inputs.items()}
            outputs, output_size = await self._submit(version, signature, part)
            slices.append(outputs)
            size += output_size
            set_size(size)
        return slices[0] if len(slices) == 1 else await asyncio.to_thread(_stack_slices, slices)

    def close(self) -> None:
        """Shuts the threads down after the batches that are running."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(
        self, version: Version, signature: str, inputs: Arrays
    ) -> asyncio.Future[tuple[Arrays, int]]:
        loop = asyncio.get_running_loop()
        rows = len(next(iter(inputs.values())))
        shapes = ((name, array.shape[1:]) for name, array in inputs.items())
        key = (version, signature, *shapes) if _text_bytes(inputs) <= _MAX_JOINED_BYTES else None
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
            results = await loop.run_in_executor(self._threads, self._run, batch)
        except Exception as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._answer(batch[:middle])
                await self._answer(batch[middle:])
                return
            results = [error]
        for item, result in zip(batch, results, strict=True):
            if item.answer.done():
                continue
            if isinstance(result, Exception):
                item.answer.set_exception(result)
            else:
                item.answer.set_result(result)

    def _run(self, batch: list[_Item]) -> list[tuple[Arrays, int]]:
        """Returns the outputs of each request, and their size in bytes."""
        started = time.perf_counter()
        inputs = {
            name: np.concatenate([item.inputs[name] for item in batch]) for name in batch[0].inputs
        }
        outputs = batch[0].version.run(batch[0].signature, inputs)
        self._metrics.batch_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_rows.observe(sum(item.rows for item in batch))
        ends = np.cumsum([item.rows for item in batch])[:-1]
        split = {name: np.split(array, ends) for name, array in outputs.items()}
        parts = [{name: split[name][index] for name in split} for index in range(len(batch))]
        sizes = [sum(array.nbytes for array in part.values()) + _text_bytes(part) for part in parts]
        return list(zip(parts, sizes, strict=True))


def _text_bytes(arrays: Arrays) -> int:
    """Returns the total length of all texts in bytes, and one for each text."""
    texts = (array for array in arrays.values() if array.dtype == object)
    return sum(array.size + sum(map(len, array.flat)) for array in texts)


def _stack_slices(slices: list[Arrays]) -> Arrays:
    """Concatenates slices of an answer; pads them to the widest with "", -1 (integers) or 0."""
    stacked = {}
    for name in slices[0]:
        arrays = [outputs[name] for outputs in slices]
        widest = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
        stacked[name] = np.concatenate([_pad(array, widest) for array in arrays])
    return stacked


def _pad(array: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    padding = {"O": b"", "i": -1}.get(array.dtype.kind, 0)
    padded = np.full((len(array), *sizes), padding, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded
