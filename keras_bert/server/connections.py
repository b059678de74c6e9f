"""Accepts connections up to a limit, and closes idle ones to make room for new ones."""

import asyncio
import contextlib
import math
import os
import resource
import socket
from collections.abc import Iterator

from absl import logging
from aiohttp import web

from keras_bert.errors import InputError

_RESERVED_FILES = 16  # for loading versions, reading the page, and temporary use
_MIN_CONNECTIONS = 4
_RETRY = 0.05  # seconds until the next attempt to accept a connection


def connection_limit(requested: int) -> int:
    """Returns the maximum number of connections: `requested`, or fewer if few files may be open.

    Raises:
        InputError: the process may open too few files for _MIN_CONNECTIONS connections.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY:
        return requested
    free = files - len(os.listdir("/proc/self/fd")) - _RESERVED_FILES
    if free < _MIN_CONNECTIONS:
        raise InputError(
            f"the process may open {files} files, which leaves {max(0, free)} for connections; "
            f"expected at least {_MIN_CONNECTIONS}; raise the limit, for example with "
            "`ulimit -n 1024`"
        )
    if free < requested:
        logging.warning(
            "The server accepts %d connections at a time, because the process may open only %d "
            "files (ulimit -n); --max_connections=%d has no effect",
            free,
            files,
            requested,
        )
    return min(free, requested)


class _Connection(asyncio.Protocol):
    """Passes the events of a connection to aiohttp, and records when a request starts to arrive.

    Attributes:
        handler: aiohttp's protocol of the connection.
        socket: the socket of the connection.
        first_byte: the time of the event loop at which the first byte of the current request
            arrived; None between requests; infinite if the time of the next one is not known.
    """

    def __init__(self, handler: asyncio.Protocol, client: socket.socket):
        self.handler = handler
        self.socket = client
        self.first_byte: float | None = None
        self._loop = asyncio.get_running_loop()
        self.connection_made = handler.connection_made
        self.connection_lost = handler.connection_lost
        self.eof_received = handler.eof_received
        self.pause_writing = handler.pause_writing
        self.resume_writing = handler.resume_writing

    def data_received(self, data: bytes) -> None:
        if self.first_byte is None:
            self.first_byte = self._loop.time()
        self.handler.data_received(data)


class Connections:
    """Accepts the connections of a web server.

    When `limit` connections are open, the one that has been idle for longest is closed. If all have
    requests in progress, new connections wait in the operating system's queue.
    """

    def __init__(self, limit: int):
        self._limit = limit
        # Ordered by use: the connection that was used most recently is the last one.
        self._open: dict[asyncio.Protocol, _Connection] = {}
        self._busy: set[asyncio.Protocol] = set()

    def arrival(self, request: web.Request) -> float:
        """Returns the time of the event loop at which the first byte of a request arrived."""
        now = asyncio.get_running_loop().time()
        connection = self._open.get(request.protocol)  # None if the client has disconnected.
        if connection is None or connection.first_byte is None:
            return now
        return min(now, connection.first_byte)

    @contextlib.contextmanager
    def in_use(self, request: web.Request) -> Iterator[None]:
        """Keeps the connection of a request open while the context is open."""
        protocol = request.protocol
        self._busy.add(protocol)
        try:
            yield
        finally:
            self._busy.discard(protocol)
            if protocol in self._open:
                connection = self._open[protocol] = self._open.pop(protocol)
                # The next data is the rest of this request, if its body is not complete.
                connection.first_byte = None if request.content.is_eof() else math.inf

    async def accept(self, listener: socket.socket, server: web.Server) -> None:
        """Accepts connections until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room()
            try:
                client, _ = await loop.sock_accept(listener)
                connection = _Connection(server(), client)
                await loop.connect_accepted_socket(lambda: connection, client)  # noqa: B023
                self._open[connection.handler] = connection
            except OSError as error:  # For example, another part of the process opened many files.
                logging.warning("Cannot accept a connection: %s", error.strerror or error)
                await asyncio.sleep(_RETRY)

    async def _make_room(self) -> None:
        while len(self._open) >= self._limit:
            self._open = {key: one for key, one in self._open.items() if one.socket.fileno() >= 0}
            if len(self._open) < self._limit:
                return
            idle = next((protocol for protocol in self._open if protocol not in self._busy), None)
            if idle is None or idle.transport is None:
                await asyncio.sleep(_RETRY)
            else:
                idle.transport.abort()
                await asyncio.sleep(0)  # The event loop closes the socket.
