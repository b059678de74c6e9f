"""Starts the server, polls for new versions, and shuts down gracefully."""

import asyncio
import contextlib
import gc
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
from keras_bert.server.batching import Batcher
from keras_bert.server.connections import Connections, connection_limit
from keras_bert.server.metrics import Metrics
from keras_bert.server.routes import Routes
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Versions

_BACKLOG = 1024
# Seconds after which a thread that parses or writes JSON lets the event loop run. With Python's
# default of 0.005, a short request can take 0.1 seconds while such a thread runs.
_SWITCH_INTERVAL = 0.0005
_LINGER = 2.0  # seconds to read the rest of a rejected body and to write a last answer
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
    _collect_garbage()
    metrics = Metrics()
    batcher = Batcher(settings, metrics)
    connections = Connections(connection_limit(settings.max_connections))
    routes = Routes(settings, versions, batcher, metrics, connections)
    server_logger.setLevel(DEBUG)  # aiohttp logs some invalid requests at this level.
    server_logger.addFilter(_shorten_http_errors)
    runner = web.AppRunner(
        routes.application(),
        access_log=None,
        auto_decompress=False,  # `Bodies` decompresses.
        handler_cancellation=True,  # A request ends when its client disconnects.
        # Also the time within which a new connection must send its first request's headers.
        keepalive_timeout=settings.request_timeout_s,
        lingering_time=_LINGER,
        shutdown_timeout=_LINGER,
    )
    await runner.setup()
    loop = asyncio.get_running_loop()
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        raise InputError(f"cannot listen on the port: {error.strerror}") from None
    bound.setblocking(False)
    accepting = loop.create_task(connections.accept(bound, runner.server))
    stop_requested = asyncio.Event()
    background = [
        loop.create_task(_poll_versions(versions, settings.poll_s)),
        loop.create_task(metrics.observe_loop_lag()),
    ]
    ready(stop_requested.set)
    await stop_requested.wait()
    routes.draining = True
    for task in background:
        task.cancel()
    accepting.cancel()
    await asyncio.wait([accepting])
    bound.close()
    await asyncio.sleep(_SETTLE)
    if routes.in_flight:
        logging.info("Shutting down; waiting for %d requests in flight", routes.in_flight)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(settings.drain_timeout_s):
            while routes.in_flight:
                await asyncio.sleep(0.01)
    if routes.in_flight:
        logging.warning(
            "Shutting down with %d unanswered requests after %g seconds (--drain_timeout_s)",
            routes.in_flight,
            settings.drain_timeout_s,
        )
    await runner.cleanup()
    batcher.close()
    routes.close()


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Calls `stop` on SIGTERM and SIGINT. Must be called in the event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


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
