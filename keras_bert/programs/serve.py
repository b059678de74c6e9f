"""Serves exported models over HTTP, with a web page for trying them.

keras-bert serve --export_dir=DIR --port=8501
"""

import asyncio
import importlib.util
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import logging
from absl.flags import FlagValues

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, no_arguments
from keras_bert.serving.server.folder import require_version


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "export_dir", None, "Folder of numbered versions, DIR/1, DIR/2; the highest is served."
    )
    define.string("model_name", "model", "The model's name in the routes, /v1/models/NAME.")
    define.string("host", "127.0.0.1", "Address to listen on; 0.0.0.0 for every one.")
    define.integer("port", 8501, "Port; 0 for any.", lower_bound=0, upper_bound=65535)
    define.integer(
        "max_batch_size", 64, "Rows of a batch, which joins or splits requests.", lower_bound=1
    )
    define.integer("max_request_rows", 4096, "The most rows of a request.", lower_bound=1)
    define.number(
        "batch_timeout_ms", 0.0, "How long a request may wait for others.", lower_bound=0.0
    )
    define.integer("num_batch_threads", 2, "Batches that run at a time.", lower_bound=1)
    define.integer("max_waiting", 10_000, "Requests that may wait for a batch.", lower_bound=1)
    define.integer("max_request_bytes", 16 << 20, "The largest body.", lower_bound=1)
    define.integer(
        "max_waiting_bytes",
        256 << 20,
        "The most bytes of all bodies that arrive or wait for their answer.",
        lower_bound=1,
    )
    define.number(
        "request_timeout_s",
        30.0,
        "Seconds for a request's body to arrive, for its answer, and to send it, each.",
        lower_bound=0.001,
    )
    define.number(
        "drain_timeout_s", 30.0, "Seconds to finish open requests after SIGTERM.", lower_bound=0.0
    )
    define.number(
        "file_system_poll_wait_seconds",
        1.0,
        "Seconds between searches for new versions.",
        lower_bound=0.001,
    )
    define.require("export_dir")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Serves until SIGTERM."""
    no_arguments(arguments)
    if not flags.model_name or set(flags.model_name) & set("/:"):
        raise InputError(f"--model_name={flags.model_name}: expected a name without / and :")
    for package in ("aiohttp", "prometheus_client", "tensorflow_serving"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"the server needs {package}: install the extra keras-bert-pipeline[serving]"
            )
    folder = Path(flags.export_dir)
    require_version(folder)
    bound = bind(flags.host, flags.port)
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.serving.server.lifecycle import Settings, serve, stop_on_signals
    from keras_bert.serving.server.versions import Versions

    settings = Settings(
        model_name=flags.model_name,
        max_batch_size=flags.max_batch_size,
        max_request_rows=flags.max_request_rows,
        batch_timeout_ms=flags.batch_timeout_ms,
        num_batch_threads=flags.num_batch_threads,
        max_waiting=flags.max_waiting,
        max_request_bytes=flags.max_request_bytes,
        max_waiting_bytes=flags.max_waiting_bytes,
        request_timeout_s=flags.request_timeout_s,
        drain_timeout_s=flags.drain_timeout_s,
        poll_s=flags.file_system_poll_wait_seconds,
    )
    versions = Versions(folder)
    versions.start()

    def ready(stop: Callable[[], None]) -> None:
        stop_on_signals(stop)
        host, port = bound.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logging.info("http://%s:%d shows the page; the model is %s", shown, port, flags.model_name)

    async def serve_and_end() -> None:
        await serve(settings, bound, versions, ready)
        logging.info("ended")
        logging.flush()
        # Exit at once: asyncio.run and Python would wait for threads that still run a batch or load
        # a version after --drain_timeout_s.
        os._exit(0)

    asyncio.run(serve_and_end())


def bind(host: str, port: int) -> socket.socket:
    """Binds a socket to a port, or for port 0 to any free one, without listening yet.

    Raises:
        InputError: the port is in use, or the host is not this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"--host={host} --port={port}: cannot listen there: {reason}") from None
    return bound


PROGRAM = Program("serve", __doc__, define_flags, main)
