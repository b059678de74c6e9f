"""Serves exported models over HTTP, with a web page for trying them.

    keras-bert serve --export_dir=serving/mrpc

    keras-bert serve --export_dir=mrpc=serving/mrpc,ner=serving/ner --host=0.0.0.0 --port=80

A new version in a folder is served once it is complete.
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
from keras_bert.export.version_folders import INFO, require_version
from keras_bert.files import read_json
from keras_bert.options import from_values
from keras_bert.programs.options import values_of
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.server.settings import Settings, read_api_keys
from keras_bert.startup import start_tensorflow


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Serves the exported model until SIGTERM or Ctrl-C."""
    reject_arguments(arguments)
    folders = model_folders(flags.export_dir)
    packages = ("aiohttp", "orjson", "prometheus_client", "tensorflow_serving")
    require_packages(packages, "keras-bert serve")
    engine, precision = flags.engine, flags.engine_precision or ""
    check_engine(engine, precision)
    versions = [require_version(folder) for folder in folders.values()]
    keys = read_api_keys(flags.api_key_file) if flags.api_key_file else ()
    bound = bind(flags.host, flags.port)
    # Served weights do not change, so TensorFlow may keep copies of them in the layout of oneDNN's
    # products. This makes only bfloat16 faster, and more than doubles the memory of a model.
    if any(_is_bfloat16(numbered[max(numbered)]) for numbered in versions):
        os.environ.setdefault("TF_ONEDNN_ASSUME_FROZEN_WEIGHTS", "1")
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.server.app import serve
    from keras_bert.server.versions import Versions

    hosts = tuple(name.lower() for name in [flags.host, *flags.allowed_hosts])
    changes = {"allowed_hosts": hosts, "api_keys": keys}
    settings = from_values(Settings, values_of(flags) | changes)
    models = {name: Versions(folder, engine, precision) for name, folder in folders.items()}
    for each in models.values():
        each.start()

    def ready(stop: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        host, port = bound.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logging.info(
            "Serving model%s %s; demo page and REST API%s: http://%s:%d",
            "s" if len(models) > 1 else "",
            ", ".join(models),
            f" with {len(keys)} API key{'s' * (len(keys) > 1)}" if keys else "",
            shown,
            port,
        )

    async def serve_and_end() -> None:
        await serve(settings, bound, models, ready)
        logging.info("The server has shut down")
        logging.flush()
        # Exit at once: asyncio.run and Python would wait for threads that still run a batch or load
        # a version after the time for open requests.
        os._exit(0)

    asyncio.run(serve_and_end())


def model_folders(entries: Sequence[str]) -> dict[str, Path]:
    """Returns {name of a model: its folder} for the entries of --export_dir, DIR or NAME=DIR."""
    folders: dict[str, Path] = {}
    for entry in entries:
        name, separator, folder = entry.partition("=")
        if not separator or Path(entry).is_dir():
            name, folder = "model", entry
        if not name or not folder or set(name) & set("/:"):
            raise InputError(
                f"--export_dir={entry}: expected DIR or NAME=DIR, with a name without / and :"
            )
        if name in folders:
            raise InputError(
                f"--export_dir={','.join(entries)}: found two models with the name {name}; "
                "expected NAME=DIR for each, with different names"
            )
        folders[name] = Path(folder)
    return folders


def _is_bfloat16(version: Path) -> bool:
    try:
        return read_json(version / INFO).get("compute_type") == "bfloat16"
    except InputError:  # The version cannot be loaded, which the server logs.
        return False


def bind(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to a port, but does not listen yet; port 0 is any free one."""
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
