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

from keras_bert.errors import InputError
from keras_bert.export.engines import EngineRequest
from keras_bert.export.version_folders import require_version
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.startup import start_tensorflow


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "export_dir",
        None,
        "Folder with the exported versions DIR/1, DIR/2, ...; the highest number is served.",
    )
    define.enum(
        "engine",
        "",
        ["", "tensorflow", "onnxruntime", "openvino"],
        "Engine that runs the network. Default: the first engine that the model was exported for "
        "(--engines) and that has the precision; otherwise tensorflow.",
    )
    define.enum(
        "engine_precision",
        None,
        ["float32", "bfloat16", "int8"],
        "Precision of the engine's matrix products. Default: the compute type of the export.",
    )
    define.string("model_name", "model", "Name of the model in the URLs, /v1/models/NAME.")
    define.string(
        "host", "127.0.0.1", "Address to listen on; 0.0.0.0 for all IPv4 addresses of the machine."
    )
    define.integer(
        "port", 8501, "Port to listen on; 0 for any free port.", lower_bound=0, upper_bound=65535
    )
    define.strings(
        "allowed_hosts",
        [],
        "Host names by which clients reach the server, besides IP addresses, localhost and --host; "
        "* for any name.",
    )
    define.integer(
        "max_connections",
        1000,
        "Maximum number of open connections; above it, idle connections are closed.",
        lower_bound=1,
    )
    define.integer(
        "max_batch_size",
        64,
        "Maximum number of rows in a batch. Requests are joined or split to fit.",
        lower_bound=1,
    )
    define.integer("max_request_rows", 4096, "Maximum number of rows in a request.", lower_bound=1)
    define.integer(
        "max_response_values",
        16 << 20,
        "Maximum number of values in a response to several rows, including padding.",
        lower_bound=1,
    )
    define.number(
        "batch_timeout_ms",
        0.0,
        "Milliseconds that a request may wait for others to join its batch.",
        lower_bound=0.0,
    )
    define.integer(
        "num_batch_threads",
        2,
        "Number of batches that are computed at the same time.",
        lower_bound=1,
    )
    define.integer(
        "max_waiting", 10_000, "Maximum number of requests that wait for a batch.", lower_bound=1
    )
    define.integer(
        "max_request_bytes", 2 << 20, "Maximum size of a request body in bytes.", lower_bound=1
    )
    define.integer(
        "max_waiting_bytes",
        256 << 20,
        "Maximum total size in bytes of the bodies of all unanswered requests, and also of all "
        "answers that are not yet sent. A single larger answer is sent if it is the only one.",
        lower_bound=1,
    )
    define.number(
        "request_timeout_s",
        30.0,
        "Timeout in seconds, applied separately to receiving a request, to computing the answer "
        "and to sending it.",
        lower_bound=0.001,
    )
    define.number(
        "drain_timeout_s",
        30.0,
        "Seconds to answer open requests after SIGTERM, before the server exits.",
        lower_bound=0.0,
    )
    define.number(
        "file_system_poll_wait_seconds",
        1.0,
        "Seconds between two checks for new versions in --export_dir.",
        lower_bound=0.001,
    )
    define.require("export_dir")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Serves the exported model until SIGTERM or Ctrl-C."""
    reject_arguments(arguments)
    if not flags.model_name or set(flags.model_name) & set("/:"):
        raise InputError(
            f"--model_name={flags.model_name}: expected a non-empty name without / and :"
        )
    for package in ("aiohttp", "orjson", "prometheus_client", "tensorflow_serving"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"{package} is not installed; the server needs it: "
                "pip install 'keras-bert-pipeline[serving]'"
            )
    folder = Path(flags.export_dir)
    request = EngineRequest(flags.engine, flags.engine_precision or "")
    require_version(folder)
    bound = bind(flags.host, flags.port)
    # Served weights do not change, so TensorFlow may keep them in the layout of oneDNN's products.
    os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.server.lifecycle import serve, stop_on_signals
    from keras_bert.server.settings import Settings
    from keras_bert.server.versions import Versions

    settings = Settings(
        model_name=flags.model_name,
        allowed_hosts=tuple(name.lower() for name in [flags.host, *flags.allowed_hosts]),
        max_batch_size=flags.max_batch_size,
        max_request_rows=flags.max_request_rows,
        max_response_values=flags.max_response_values,
        max_connections=flags.max_connections,
        batch_timeout_ms=flags.batch_timeout_ms,
        num_batch_threads=flags.num_batch_threads,
        max_waiting=flags.max_waiting,
        max_request_bytes=flags.max_request_bytes,
        max_waiting_bytes=flags.max_waiting_bytes,
        request_timeout_s=flags.request_timeout_s,
        drain_timeout_s=flags.drain_timeout_s,
        poll_s=flags.file_system_poll_wait_seconds,
    )
    versions = Versions(folder, request)
    versions.start()

    def ready(stop: Callable[[], None]) -> None:
        stop_on_signals(stop)
        host, port = bound.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logging.info(
            "Serving model %s; demo page and REST API: http://%s:%d", flags.model_name, shown, port
        )

    async def serve_and_end() -> None:
        await serve(settings, bound, versions, ready)
        logging.info("The server has shut down")
        logging.flush()
        # Exit at once: asyncio.run and Python would wait for threads that still run a batch or load
        # a version after --drain_timeout_s.
        os._exit(0)

    asyncio.run(serve_and_end())


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to a port, but does not listen yet; port 0 is any free port.

    Raises:
        InputError: the port is in use, or `host` is not an address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"--host={host} --port={port}: cannot listen on this address: {reason}"
        ) from None
    return bound


PROGRAM = Program("serve", __doc__, define_flags, main)
