"""Declares the settings of the server."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from keras_bert.errors import InputError
from keras_bert.options import advanced, option


@dataclass(frozen=True)
class Settings:
    """The settings of the server; those with a description are options of `keras-bert serve`.

    Attributes:
        api_keys: the keys in --api_key_file; empty if requests need none.
        max_request_rows: maximum number of rows in a request.
        max_response_values: maximum number of values in a response to several rows, with padding.
        max_in_flight: maximum number of requests in progress, and of connections; above it, idle
            connections are closed.
        max_waiting_bytes: maximum total size in bytes of the bodies of all unanswered requests, and
            also of all answers that are not yet sent. A single larger answer is sent if it is the
            only one.
        drain_timeout_s: seconds to answer open requests after SIGTERM, before the server exits.
        poll_interval_s: seconds between two checks for new versions in --export_dir.
    """

    GROUP: ClassVar[str] = "server"
    export_dir: Sequence[str] = option(
        (),
        "Folder with the exported versions DIR/1, DIR/2, ..., of which the highest number is "
        "served; for several models, NAME=DIR of each. A DIR without a name is served as `model`.",
        required=True,
    )
    engine: str = option(
        "",
        "Engine that runs the network. Default: the first engine that the model was exported for "
        "(--engines) and that has the precision; otherwise tensorflow.",
        choices=("", "tensorflow", "onnxruntime", "openvino"),
    )
    engine_precision: str | None = option(
        None,
        "Precision of the engine's matrix products. Default: the compute type of the export.",
        choices=("float32", "bfloat16", "int8"),
    )
    host: str = option(
        "127.0.0.1", "Address to listen on; 0.0.0.0 for all IPv4 addresses of the machine."
    )
    port: int = option(8501, "Port to listen on; 0 for any free port.", min=0, max=65535)
    allowed_hosts: Sequence[str] = option(
        (),
        "Host names by which clients reach the server, besides IP addresses, localhost and --host; "
        "* for any name.",
    )
    api_key_file: str = option(
        "",
        "File with the keys of clients, one per line, of which all requests but those to /healthz "
        "and the page need one, as `Authorization: Bearer KEY`. Default: requests need no key.",
    )
    api_keys: Sequence[bytes] = field(default=(), repr=False)
    max_batch_size: int = advanced(
        64, "Maximum number of rows in a batch. Requests are joined or split to fit.", min=1
    )
    max_request_rows: int = 4096
    max_response_values: int = 16 << 20
    batch_timeout_ms: float = advanced(
        0.0, "Milliseconds that a request may wait for others to join its batch.", min=0
    )
    num_batch_threads: int = advanced(
        2, "Number of batches that are computed at the same time.", min=1
    )
    max_in_flight: int = 1000
    max_request_bytes: int = advanced(2 << 20, "Maximum size of a request body in bytes.", min=1)
    max_waiting_bytes: int = 256 << 20
    request_timeout_s: float = advanced(
        30.0,
        "Timeout in seconds, applied separately to receiving a request, to computing the answer "
        "and to sending it.",
        min=0.001,
    )
    drain_timeout_s: float = 30.0
    poll_interval_s: float = 1.0


def read_api_keys(path: str) -> tuple[bytes, ...]:
    """Reads the keys in a file, one per line; no error contains a part of a line."""
    try:
        lines = [line.strip() for line in Path(path).read_bytes().splitlines()]
    except OSError as error:
        raise InputError(f"--api_key_file={path}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, start=1):
        if re.search(rb"[^!-~]", line):
            raise InputError(
                f"--api_key_file={path}: line {number} has a character that is not visible ASCII; "
                "expected one key per line, without spaces"
            )
    if not any(lines):
        raise InputError(f"--api_key_file={path}: has no key; expected one per line")
    return tuple(filter(None, lines))
