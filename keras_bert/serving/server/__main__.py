"""Serves exported models over HTTP, with a page to try them in the browser.

python -m keras_bert.serving.server --export_dir=DIR --port=8501
"""

import asyncio
import importlib.util
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags, logging

from keras_bert.common.errors import InputError
from keras_bert.programs.program import no_arguments, require, run, start_tensorflow
from keras_bert.serving.server.folder import require_version

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "export_dir", None, "Folder of numbered versions, DIR/1, DIR/2; the highest is served."
)
flags.DEFINE_string("model_name", "model", "The model's name in the routes, /v1/models/NAME.")
flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; 0.0.0.0 for every one.")
flags.DEFINE_integer("port", 8501, "Port; 0 for any.", lower_bound=0, upper_bound=65535)
flags.DEFINE_integer(
    "max_batch_size", 64, "Rows that requests are joined to, or cut to.", lower_bound=1
)
flags.DEFINE_integer("max_request_rows", 4096, "The most rows of a request.", lower_bound=1)
flags.DEFINE_float(
    "batch_timeout_ms", 0.0, "How long a request may wait for others.", lower_bound=0.0
)
flags.DEFINE_integer("num_batch_threads", 2, "Batches that run at a time.", lower_bound=1)
flags.DEFINE_integer("max_waiting", 10_000, "Requests that may wait for a batch.", lower_bound=1)
flags.DEFINE_integer("max_request_bytes", 16 << 20, "The largest body.", lower_bound=1)
flags.DEFINE_integer(
    "max_waiting_bytes",
    256 << 20,
    "Of all bodies together that arrive or wait for their answer.",
    lower_bound=1,
)
flags.DEFINE_float(
    "request_timeout_s",
    30.0,
    "For a request's body to arrive, again for its answer, and again to send it.",
    lower_bound=0.001,
)
flags.DEFINE_float("drain_timeout_s", 30.0, "For what is in flight at SIGTERM.", lower_bound=0.0)
flags.DEFINE_float(
    "file_system_poll_wait_seconds", 1.0, "Between looks for new versions.", lower_bound=0.001
)


def main(argv: Sequence[str]) -> None:
    """Serves until SIGTERM."""
    no_arguments(argv)
    if not FLAGS.model_name or set(FLAGS.model_name) & set("/:"):
        raise InputError(f"--model_name={FLAGS.model_name}: expected a name without / and :")
    for package in ("aiohttp", "prometheus_client", "tensorflow_serving"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"the server needs {package}: install the extra, keras_bert[serving]")
    folder = Path(FLAGS.export_dir)
    require_version(folder)
    bound = bind(FLAGS.host, FLAGS.port)
    start_tensorflow()  # Late: bad flags and --help should not wait for it.
    from keras_bert.serving.server.lifecycle import Settings, serve, stop_on_signals
    from keras_bert.serving.server.versions import Versions

    settings = Settings(
        model_name=FLAGS.model_name,
        max_batch_size=FLAGS.max_batch_size,
        max_request_rows=FLAGS.max_request_rows,
        batch_timeout_ms=FLAGS.batch_timeout_ms,
        num_batch_threads=FLAGS.num_batch_threads,
        max_waiting=FLAGS.max_waiting,
        max_request_bytes=FLAGS.max_request_bytes,
        max_waiting_bytes=FLAGS.max_waiting_bytes,
        request_timeout_s=FLAGS.request_timeout_s,
        drain_timeout_s=FLAGS.drain_timeout_s,
        poll_s=FLAGS.file_system_poll_wait_seconds,
    )
    versions = Versions(folder)
    versions.start()

    def ready(stop: Callable[[], None]) -> None:
        stop_on_signals(stop)
        host, port = bound.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logging.info("http://%s:%d shows the page; the model is %s", shown, port, FLAGS.model_name)

    async def serve_and_end() -> None:
        await serve(settings, bound, versions, ready)
        logging.info("ended")
        logging.flush()
        # Not by returning: asyncio and Python would wait for threads that outlived
        # --drain_timeout_s, with a batch or with a version that loads.
        os._exit(0)

    asyncio.run(serve_and_end())


def bind(host: str, port: int) -> socket.socket:
    """Takes a port.

    Args:
        host: a name or an address.
        port: 0 for any that is free.

    Returns:
        A socket that does not listen yet.

    Raises:
        InputError: the port is taken, or the host is not this machine.
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


if __name__ == "__main__":
    sys.argv[0] = "keras_bert.serving.server"
    require("export_dir")
    run(main)
