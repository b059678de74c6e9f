"""Runs the server: listens, polls for new versions, and shuts down gracefully.

On SIGTERM or SIGINT the port is closed, requests in flight are answered, and `serve` returns.
"""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from logging import WARNING, LogRecord

from absl import logging
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger

from keras_bert.common.errors import InputError
from keras_bert.serving.server.batching import Batcher
from keras_bert.serving.server.bodies import Bodies
from keras_bert.serving.server.metrics import Metrics
from keras_bert.serving.server.routes import Routes
from keras_bert.serving.server.versions import Versions

_BACKLOG = 1024
_LINGER = 2.0  # seconds to read the rest of a rejected body and to write a last answer
_SETTLE = 0.1  # seconds to read requests that have already arrived


@dataclass(frozen=True)
class Settings:
    """The settings of the server.

    Attributes:
        model_name: the model's name in the routes.
        max_batch_size: the maximum number of rows in a batch; longer requests run in slices.
        max_request_rows: the maximum number of rows in a request.
        batch_timeout_ms: how long a request may wait for others.
        num_batch_threads: the number of batches that run at a time.
        max_waiting: the maximum number of requests that wait for a batch.
        max_request_bytes: the maximum size of a body.
        max_waiting_bytes: the maximum total size of the bodies of unanswered requests.
        request_timeout_s: timeout for receiving the body, for computing the answer, and for sending
            it, each.
        drain_timeout_s: how long requests in flight may take after the server is asked to stop.
        poll_s: seconds between two checks for new versions.
    """

    model_name: str = "model"
    max_batch_size: int = 64
    max_request_rows: int = 4096
    batch_timeout_ms: float = 0.0
    num_batch_threads: int = 2
    max_waiting: int = 10_000
    max_request_bytes: int = 16 << 20
    max_waiting_bytes: int = 256 << 20
    request_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    poll_s: float = 1.0


async def serve(
    settings: Settings,
    bound: socket.socket,
    versions: Versions,
    ready: Callable[[Callable[[], None]], None],
) -> None:
    """Serves on a bound socket until it is asked to stop.

    `ready` is called when the server listens, with the function that stops it. A version must be
    loaded.
    """
    metrics = Metrics()
    batcher = Batcher(
        settings.max_batch_size,
        settings.max_request_rows,
        settings.batch_timeout_ms / 1000,
        settings.num_batch_threads,
        settings.max_waiting,
        metrics,
    )
    timeout = settings.request_timeout_s
    bodies = Bodies(settings.max_request_bytes, settings.max_waiting_bytes, timeout)
    routes = Routes(settings.model_name, versions, bodies, batcher, metrics, timeout)
    server_logger.addFilter(_shorten_http_errors)
    runner = web.AppRunner(
        routes.application(),
        access_log=None,
        auto_decompress=False,  # `Bodies` does it.
        # Also the time within which a new connection must send its first request's headers.
        keepalive_timeout=timeout,
        lingering_time=_LINGER,
        shutdown_timeout=_LINGER,
    )
    await runner.setup()
    loop = asyncio.get_running_loop()
    try:
        listener = await loop.create_server(runner.server, sock=bound, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(f"cannot listen on the port: {error.strerror}") from None
    stop_requested = asyncio.Event()
    polling = loop.create_task(_poll_versions(versions, settings.poll_s))
    ready(stop_requested.set)
    await stop_requested.wait()
    routes.draining = True
    listener.close()
    polling.cancel()
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
                gc.collect()  # Frees the old version after its last requests.
        except OSError as error:
            # The folder may be unavailable for a while.
            logging.warning("Cannot check for new versions: %s", error)
        except Exception:  # Serving continues whatever the error.
            logging.exception("Cannot check for new versions")


def _shorten_http_errors(record: LogRecord) -> bool:
    """Shortens aiohttp's log message for a request that is not HTTP to one line."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        message = " ".join(error.message.split())
        record.msg, record.args = "%s: %.200s", (record.getMessage(), message)
        record.exc_info = None
        record.levelno, record.levelname = WARNING, "WARNING"
    return True
