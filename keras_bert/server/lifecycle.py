"""Starts the server, polls for new versions, and shuts down gracefully."""

import asyncio
import gc
import logging as std_logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterable, Mapping

from absl import logging
from aiohttp import web

from keras_bert.errors import InputError
from keras_bert.server.app import App
from keras_bert.server.metrics import Metrics
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Versions

_BACKLOG = 1024
_ACCEPTS = 4  # connections that are accepted before the event loop closes others to make room
_RESERVED_FILES = 24  # for these connections, loading versions, and temporary use
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
    models: Mapping[str, Versions],
    ready: Callable[[Callable[[], None]], None],
) -> None:
    """Serves on a bound socket until it is stopped; then answers the open requests and returns.

    `models` has the versions of each model by its name; they must have loaded one. When the server
    listens, `ready` is called with a function that stops the server.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    _collect_garbage()
    # Each connection is an open file.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    free_files = most_files - len(os.listdir("/proc/self/fd")) - _RESERVED_FILES
    limit = min(settings.max_in_flight, max(free_files, _ACCEPTS))
    # aiohttp would log a traceback for each request that is not valid HTTP.
    std_logging.getLogger("aiohttp.server").setLevel(std_logging.CRITICAL)
    metrics = Metrics()
    app = App(settings, models, metrics)
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
        connections = [each for each in runner.server.connections if each.transport]
        idle = [each for each in connections if each not in app.busy]
        if len(connections) >= limit and idle:
            idle[0].force_close()
        return runner.server()

    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(accept, sock=bound, backlog=_ACCEPTS)
        bound.listen(_BACKLOG)  # The operating system's queue may be longer.
    except OSError as error:  # Another server that was started at the same time listens.
        raise InputError(f"cannot listen on the port: {error.strerror}") from None
    stop_requested = asyncio.Event()
    background = [
        loop.create_task(_poll_versions(models.values(), settings.poll_interval_s)),
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


async def _poll_versions(models: Iterable[Versions], seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        for versions in models:
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
