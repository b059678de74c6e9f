"""Defines the URL paths of the REST routes, and their names in the metrics."""

import re

from keras_bert.serving.server.responses import PAGE_FILES

_VERSION_PATH = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
CALL_PATH = re.compile(_VERSION_PATH + ":(classify|regress|predict)", re.IGNORECASE | re.ASCII)
INFO_PATH = re.compile(_VERSION_PATH + "(/metadata)?", re.IGNORECASE | re.ASCII)
EMBEDDINGS_PATH = "/v1/embeddings"


def route_name(path: str) -> str:
    """Returns the value of the label `route` in the metrics for a URL path, one of a few."""
    if path == EMBEDDINGS_PATH:
        return "embeddings"
    if path.startswith("/v1/"):
        if CALL_PATH.fullmatch(path):
            return "predict"
        return "metadata" if path.endswith("/metadata") else "status"
    known = {"/healthz": "health", "/metrics": "metrics", "/export.json": "export"}
    return known.get(path, "page" if path in PAGE_FILES else "other")
