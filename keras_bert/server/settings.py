"""Defines the settings of the server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The settings of the server, which the flags of keras_bert.programs.serve describe.

    They have the names of the flags, except `poll_s`, which is --file_system_poll_wait_seconds.
    """

    model_name: str = "model"
    allowed_hosts: tuple[str, ...] = ()
    max_batch_size: int = 64
    max_request_rows: int = 4096
    max_response_values: int = 16 << 20
    batch_timeout_ms: float = 0.0
    num_batch_threads: int = 2
    max_connections: int = 1000
    max_waiting: int = 10_000
    max_request_bytes: int = 2 << 20
    max_waiting_bytes: int = 256 << 20
    request_timeout_s: float = 30.0
    drain_timeout_s: float = 30.0
    poll_s: float = 1.0
