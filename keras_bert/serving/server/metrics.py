"""Collects the server's metrics for Prometheus."""

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
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server."""

    def __init__(self):
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.requests = Counter(
            "keras_bert_requests", "Answered requests.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "keras_bert_request_seconds",
            "From the request's headers to its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "keras_bert_requests_in_flight", "Requests not yet answered.", registry=registry
        )
        self.batch_rows = Histogram(
            "keras_bert_batch_rows", "Rows of a batch.", buckets=_ROWS, registry=registry
        )
        self.batch_seconds = Histogram(
            "keras_bert_batch_seconds", "A batch's run.", buckets=_SECONDS, registry=registry
        )
        self.queue = Gauge(
            "keras_bert_queue_requests", "Requests that wait for a batch.", registry=registry
        )
        self.version = Gauge(
            "keras_bert_model_version", "The version that is served.", registry=registry
        )

    def page(self) -> bytes:
        """Returns all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
