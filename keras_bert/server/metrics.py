"""Collects the server's metrics for Prometheus."""

import asyncio

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_1_0_0

CONTENT_TYPE = CONTENT_TYPE_PLAIN_1_0_0

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LAG_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
_LAG_PERIOD = 0.02  # seconds between two measurements of the event loop's lag
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server."""

    def __init__(self):
        self._registry = CollectorRegistry()
        only = {"registry": self._registry}
        ProcessCollector(**only)
        PlatformCollector(**only)
        text = "Number of requests by status; 499: the client disconnected before the response."
        self.requests = Counter("keras_bert_requests", text, ["route", "status"], **only)
        text = "Seconds from the arrival of a request's headers until its response is ready."
        buckets = {"buckets": _SECONDS, **only}
        self.seconds = Histogram("keras_bert_request_seconds", text, ["route"], **buckets)
        self.batch_seconds = Histogram(
            "keras_bert_batch_seconds", "Seconds to run a batch.", **buckets
        )
        text = "Number of rows in a batch."
        self.batch_rows = Histogram("keras_bert_batch_rows", text, buckets=_ROWS, **only)
        text = "Seconds by which the event loop resumes a sleeping task too late."
        name = "keras_bert_event_loop_lag_seconds"
        self.loop_lag = Histogram(name, text, buckets=_LAG_SECONDS, **only)
        text = "Number of requests that are not answered yet."
        self.in_flight = Gauge("keras_bert_requests_in_flight", text, **only)
        text = "Number of requests that wait for a batch."
        self.queue = Gauge("keras_bert_queue_requests", text, **only)
        text = "Number of the served version of a model."
        self.version = Gauge("keras_bert_model_version", text, ["model"], **only)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    async def observe_loop_lag(self) -> None:
        """Measures how late the event loop resumes, at a fixed period, until it is cancelled.

        A callback that blocks the loop for longer than 20 ms delays at least one measurement.
        """
        loop = asyncio.get_running_loop()
        while True:
            expected = loop.time() + _LAG_PERIOD
            await asyncio.sleep(_LAG_PERIOD)
            self.loop_lag.observe(loop.time() - expected)
