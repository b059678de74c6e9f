"""Receives and decompresses request bodies, and limits the memory of bodies and of answers."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import ClientPayloadError, web

from keras_bert.server.errors import RestError, bad_request

_ENCODINGS = ("", "identity", "gzip", "deflate")
_ANY_HEADER = zlib.MAX_WBITS | 32  # gzip or zlib header
_STEP = 1 << 18  # maximum number of bytes that are decompressed at once
# A decompressed body of more than _FREE_BYTES may be at most _MAX_RATIO times its compressed size.
_MAX_RATIO = 100
_FREE_BYTES = 1 << 20


class Bodies:
    """Reads request bodies that arrive within `timeout` seconds and fit in the limits.

    The time includes that of the headers.
    `max_bytes` limits each body, before and after decompression. `max_waiting_bytes` limits the
    total size of the bodies of unanswered requests.
    """

    def __init__(self, max_bytes: int, max_waiting_bytes: int, timeout: float):
        self._max_bytes = max_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._timeout = timeout
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request, arrival: float) -> AsyncIterator[bytes]:
        """Yields a decompressed body, which counts toward the total size while the context is open.

        `arrival` is the time of the event loop at which the first byte of the headers arrived.

        Raises:
            RestError: the body is too large, late, incomplete or in an unknown encoding, or the
                total size of all bodies is too large.
        """
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise RestError(415, f"Content-Encoding: {encoding}; expected gzip, deflate or none")
        length = request.content_length or 0
        if length > self._max_bytes:
            raise self._too_large()
        self._require_room(length)
        chunks, size = [], 0
        try:
            try:
                async with asyncio.timeout_at(arrival + self._timeout):
                    async for chunk in _chunks(request, encoding):
                        chunks.append(chunk)
                        size += len(chunk)
                        self._waiting += len(chunk)
                        if size > self._max_bytes:
                            raise self._too_large()
                        self._require_room(0)
            except TimeoutError:
                raise RestError(
                    408, f"The request did not arrive within {self._timeout:g} seconds"
                ) from None
            body = b"".join(chunks)
            chunks.clear()
            yield body
        finally:
            self._waiting -= size

    def _require_room(self, more: int) -> None:
        if self._waiting + more > self._max_waiting_bytes:
            raise RestError(
                503,
                "The server is overloaded: the bodies of the waiting requests exceed the limit of "
                f"{self._max_waiting_bytes} bytes; try again later",
            )

    def _too_large(self) -> RestError:
        return RestError(
            413, f"The request body is larger than the limit of {self._max_bytes} bytes"
        )


class Answers:
    """Counts the bytes of the answers that are computed and not yet sent.

    `max_bytes` limits their total size. An answer that is larger is allowed if it is the only one.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._held = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator["HeldAnswer"]:
        """Yields the size of an answer, which counts toward the total while the context is open."""
        answer = HeldAnswer(self)
        try:
            yield answer
        finally:
            self._held -= answer.size

    def change(self, answer: "HeldAnswer", size: int) -> None:
        """Changes the size of an answer; raises a RestError if the total size is too large."""
        others = self._held - answer.size
        if others and others + size > self._max_bytes:
            raise self._overloaded()
        self._held = others + size
        answer.size = size

    def require_room(self) -> None:
        """Raises a RestError with status 503 if no further answer is possible."""
        if self._held >= self._max_bytes:
            raise self._overloaded()

    def _overloaded(self) -> RestError:
        return RestError(
            503,
            "The server is overloaded: the answers that are not yet sent exceed the limit of "
            f"{self._max_bytes} bytes; try again later",
        )


class HeldAnswer:
    """The size of the answer of one request in bytes, at first 0."""

    def __init__(self, answers: Answers):
        self._answers = answers
        self.size = 0

    def set_size(self, size: int) -> None:
        """Changes the size; raises a RestError if the total size of all answers is too large."""
        self._answers.change(self, size)


async def _chunks(request: web.Request, encoding: str) -> AsyncIterator[bytes]:
    """Yields a body in decompressed chunks as they arrive; raises a RestError if it is invalid."""
    compressed = encoding not in ("", "identity")
    decompressor = zlib.decompressobj(_ANY_HEADER)
    received = size = 0
    try:
        async for data in request.content.iter_any():
            received += len(data)
            for chunk in _decompress(decompressor, data) if compressed else [data]:
                size += len(chunk)
                if size > max(_FREE_BYTES, _MAX_RATIO * received):
                    raise RestError(
                        413,
                        f"The request body is more than {_MAX_RATIO} times as large as its "
                        f"compressed data; expected at most {_MAX_RATIO} times as large, or "
                        f"{_FREE_BYTES} bytes",
                    )
                yield chunk
                await asyncio.sleep(0)  # Other requests are handled between the chunks.
    except zlib.error as error:
        raise bad_request(f"The request body is not valid {encoding} data: {error}") from None
    except (ClientPayloadError, web.RequestPayloadError, ConnectionError) as error:
        # The body is incomplete or does not match its headers; the client may be gone.
        raise bad_request(f"The request body is incomplete or invalid: {error}") from None
    if compressed and not decompressor.eof:
        raise bad_request("The request body is incomplete: the compressed data ends too early")


def _decompress(decompressor: Any, data: bytes) -> Iterator[bytes]:
    while data:
        if decompressor.eof:
            raise zlib.error("data after the end of the compressed data")
        yield decompressor.decompress(data, _STEP)
        data = decompressor.unconsumed_tail or decompressor.unused_data
