"""Starts the server, polls for new versions, and shuts down gracefully."""

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from logging import DEBUG, WARNING, LogRecord

from absl import logging
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger

from keras_bert.errors import InputError
from keras_bert.server.app import App
from keras_bert.server.metrics import Metrics
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Versions

_BACKLOG = 1024
_ACCEPTS = 4  # connections that are accepted before the event loop closes others to make room
_RESERVED_FILES = 24  # for these connections, loading versions, and temporary use
_MIN_CONNECTIONS = 4
# Seconds after which a thread that converts JSON lets the event loop run. With Python's default of
# 0.005, a short request can take 0.1 seconds while such a thread runs.
_SWITCH_INTERVAL = 0.0005
# Python's default of 700 would start many collections while a large body is parsed.
_OBJECTS_PER_COLLECTION = 100_000
_LINGER = 2.0  # seconds to read the rest of a rejected body
_SETTLE = 0.1  # seconds to read requests that have already arrived


async def serve(
    settings: Settings,
    bound: socket.socket,
    versions: Versions,
    ready: Callable[[Callable[[], None]], None],
) -> None:
    """Serves on a bound socket until it is stopped; then answers the open requests and returns.

    `versions` must have loaded a version. When the server listens, `ready` is called with a
    function that stops the server.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    _collect_garbage()
    metrics = Metrics()
    app = App(settings, versions, metrics)
    limit = _connection_limit(settings.max_connections)
    server_logger.setLevel(DEBUG)  # aiohttp logs some invalid requests at this level.
    server_logger.addFilter(_shorten_http_errors)
    runner = web.AppRunner(
        app.application(),
        access_log=None,
        handler_cancellation=True,  # A request ends when its client disconnects.
        # Also the time within which a new connection must send its first request's headers.
        keepalive_timeout=settings.request_timeout_s,
        lingering_time=_LINGER,
        shutdown_timeout=settings.drain_timeout_s,
    )
    await runner.setup()

    def accept() -> asyncio.Protocol:
        """Creates the handler of a connection; above the limit, closes the oldest idle one."""
        connections = runner.server.connections
        if len(connections) >= limit:
            idle = next((each for each in connections if each not in app.busy), None)
            if idle is not None:
                idle.force_close()
        return runner.server()

    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(accept, sock=bound, backlog=_ACCEPTS)
        bound.listen(_BACKLOG)  # The operating system's queue may be longer.
    except OSError as error:
        raise InputError(f"cannot listen on the port: {error.strerror}") from None
    stop_requested = asyncio.Event()
    background = [
        loop.create_task(_poll_versions(versions, settings.poll_interval_s)),
        loop.create_task(metrics.observe_loop_lag()),
    ]
    ready(stop_requested.set)
    await stop_requested.wait()
    app.draining = True
    for task in background:
        task.cancel()
    server.close()
    await asyncio.sleep(_SETTLE)
    if app.busy:
        logging.info(
            "Shutting down; waiting up to %g seconds for %d requests in flight",
            settings.drain_timeout_s,
            len(app.busy),
        )
    await runner.cleanup()  # Closes idle connections, and the others after their response.
    app.close()


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` on SIGTERM and SIGINT. Must be called in the event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _connection_limit(requested: int) -> int:
    """Returns the maximum number of connections: `requested`, or fewer if few files may be open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = max(_MIN_CONNECTIONS, files - len(os.listdir("/proc/self/fd")) - _RESERVED_FILES)
    if files == resource.RLIM_INFINITY or free >= requested:
        return requested
    logging.warning(
        "The server accepts %d connections at a time, because the process may open only %d "
        "files (ulimit -n); with more, it accepts %d",
        free,
        files,
        requested,
    )
    return free


async def _poll_versions(versions: Versions, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            if await asyncio.to_thread(versions.refresh):
                await asyncio.sleep(seconds)
                _collect_garbage()  # Frees the old version after its last requests.
        except OSError as error:
            # The folder may be unavailable for a while.
            logging.warning("Cannot check for new versions: %s", error)
        except Exception:  # Serving continues after any error.
            logging.exception("Cannot check for new versions")


def _collect_garbage() -> None:
    """Frees unused objects, and exempts the others from later collections.

    A collection that visits all objects of TensorFlow stops the event loop for a second.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _shorten_http_errors(record: LogRecord) -> bool:
    """Shortens aiohttp's log message for a request that is not valid HTTP to one line.

    Returns whether the message is logged; other messages below the level WARNING are not.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        message = " ".join(error.message.split())
        record.msg, record.args = "%s: %.200s", (record.getMessage(), message)
        record.exc_info = None
        record.levelno, record.levelname = WARNING, "WARNING"
    return record.levelno >= WARNING
