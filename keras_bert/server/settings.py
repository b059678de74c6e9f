"""Declares the settings of the server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from keras_bert.options import advanced, option


@dataclass(frozen=True)
class Settings:
    """The settings of the server; those with a description are options of `keras-bert serve`.

    Attributes:
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
    export_dir: str = option(
        "",
        "Folder with the exported versions DIR/1, DIR/2, ...; the highest number is served.",
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
    model_name: str = option("model", "Name of the model in the URLs, /v1/models/NAME.")
    allowed_hosts: Sequence[str] = option(
        (),
        "Host names by which clients reach the server, besides IP addresses, localhost and --host; "
        "* for any name.",
    )
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
