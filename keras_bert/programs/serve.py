"""Serves exported models over HTTP, with a web page for trying them.

    keras-bert serve --export_dir=serving/mrpc

    keras-bert serve --export_dir=serving/mrpc --host=0.0.0.0 --port=80 --model_name=mrpc

A new version in the folder is served once it is complete.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import logging
from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.export.engines import check_engine, require_packages
from keras_bert.export.version_folders import require_version
from keras_bert.options import from_values
from keras_bert.programs.options import values_of
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.server.settings import Settings
from keras_bert.startup import start_tensorflow


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Serves the exported model until SIGTERM or Ctrl-C."""
    reject_arguments(arguments)
    if not flags.model_name or set(flags.model_name) & set("/:"):
        raise InputError(
            f"--model_name={flags.model_name}: expected a non-empty name without / and :"
        )
    packages = ("aiohttp", "orjson", "prometheus_client", "tensorflow_serving")
    require_packages(packages, "keras-bert serve")
    folder = Path(flags.export_dir)
    engine, precision = flags.engine, flags.engine_precision or ""
    check_engine(engine, precision)
    require_version(folder)
    bound = bind(flags.host, flags.port)
    # Served weights do not change, so TensorFlow may keep them in the layout of oneDNN's products.
    os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.server.lifecycle import serve
    from keras_bert.server.versions import Versions

    hosts = tuple(name.lower() for name in [flags.host, *flags.allowed_hosts])
    settings = from_values(Settings, {**values_of(flags), "allowed_hosts": hosts})
    versions = Versions(folder, engine, precision)
    versions.start()

    def ready(stop: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
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
        # a version after the time for open requests.
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


PROGRAM = Program("serve", __doc__, (Settings,), main)
