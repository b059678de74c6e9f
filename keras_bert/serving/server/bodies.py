"""Receives and decompresses the bodies of requests, under three limits.

Each body has a limit of size and of time, and all bodies together, those that arrive and those that
wait for their answer, have a limit of size.
"""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import ClientPayloadError, web

from keras_bert.serving.server.errors import RestError, bad_request

_ENCODINGS = ("", "identity", "gzip", "deflate")
_ANY_HEADER = zlib.MAX_WBITS | 32  # gzip's or zlib's


class Bodies:
    """Reads bodies.

    Args:
        max_bytes: the largest body, as it is sent and as it decompresses.
        max_waiting_bytes: of all bodies whose requests are not yet answered.
        timeout: seconds for a body to arrive.
    """

    def __init__(self, max_bytes: int, max_waiting_bytes: int, timeout: float):
        self._max_bytes = max_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._timeout = timeout
        self._waiting = 0

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytearray]:
        """Reads a body, which counts as waiting while the context is open.

        Args:
            request: the request.

        Yields:
            The body.

        Raises:
            RestError: the body is too large, late, cut off, or encoded in a way that is not known,
                or too many bytes wait.
        """
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise RestError(415, f"Content-Encoding: {encoding}: expected gzip, deflate or none")
        length = request.content_length or 0
        if length > self._max_bytes:
            raise self._too_large()
        self._require_room(length)
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self._timeout):
                    async for part in _parts(request, encoding, self._max_bytes + 1):
                        body += part
                        self._waiting += len(part)
                        if len(body) > self._max_bytes:
                            raise self._too_large()
                        self._require_room(0)
            except TimeoutError:
                raise RestError(
                    408, f"The request's body did not arrive within {self._timeout:g} seconds"
                ) from None
            yield body
        finally:
            self._waiting -= len(body)

    def _require_room(self, more: int) -> None:
        if self._waiting + more > self._max_waiting_bytes:
            raise RestError(
                503, f"The requests that wait have more than {self._max_waiting_bytes} bytes"
            )

    def _too_large(self) -> RestError:
        return RestError(413, f"The request's body is larger than {self._max_bytes} bytes")


async def _parts(request: web.Request, encoding: str, largest: int) -> AsyncIterator[bytes]:
    """A body's parts as they arrive, decompressed to no more than `largest` bytes each."""
    packed = encoding not in ("", "identity")
    unpacker = zlib.decompressobj(_ANY_HEADER)
    try:
        async for part in request.content.iter_any():
            for piece in _unpack(unpacker, part, largest) if packed else [part]:
                yield piece
    except zlib.error as error:
        raise bad_request(f"The request's body is not {encoding}: {error}") from None
    except (ClientPayloadError, web.RequestPayloadError, ConnectionError) as error:
        # Cut off, or not what its headers say; nobody may be there to read this.
        raise bad_request(f"The request's body is not whole: {error}") from None
    if packed and not unpacker.eof:
        raise bad_request("The request's body is not whole: its compressed data end too early")


def _unpack(unpacker: Any, part: bytes, largest: int) -> Iterator[bytes]:
    while part:
        if unpacker.eof:
            raise zlib.error("more follows its end")
        yield unpacker.decompress(part, largest)
        part = unpacker.unconsumed_tail or unpacker.unused_data
