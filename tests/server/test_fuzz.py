"""Requests generated from the server's own OpenAPI schema never make the server fail."""

import hypothesis
import pytest
import requests

from tests.server.conftest import RERANKER, FakeVersion, rerank

schemathesis = pytest.importorskip("schemathesis")

pytestmark = pytest.mark.slow  # Sends hundreds of requests.

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
]
SETTINGS = hypothesis.settings(
    max_examples=20,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def is_of_texts(operation, case) -> bool:
    """Returns whether a request sends texts to the latest version, or to another API's route."""
    if operation.label in ("POST /rerank", "POST /v1/rerank", "POST /tokenize"):
        return True
    latest = operation.label == "POST /v1/models/model:predict"
    return latest and case.body.get("signature_name", "") in ("", "serving_default")


def test_requests_generated_from_the_schema_cause_no_failures(serve_here):
    models = {"model": FakeVersion(), "ranker": FakeVersion(rerank, RERANKER)}
    server = serve_here(models, request_timeout_s=1.5, max_request_bytes=2_000_000)
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    accepted = schemathesis.checks.CHECKS.get_by_names(["positive_data_acceptance"])
    operations = [result.ok() for result in schema.get_all_operations()]
    statuses = set()

    def fuzz(operation, mode) -> None:
        @SETTINGS
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def check(case) -> None:
            response = case.call(timeout=20)
            statuses.add((operation.label, response.status_code))
            case.validate_response(response, checks=checks)
            # A schema cannot require lists of equal lengths in a tensor; texts have no lists.
            if mode is schemathesis.GenerationMode.POSITIVE and is_of_texts(operation, case):
                case.validate_response(response, checks=accepted)

        check()

    for operation in operations:
        fuzz(operation, schemathesis.GenerationMode.POSITIVE)
        if "post" in operation.method or "{" in operation.path:
            fuzz(operation, schemathesis.GenerationMode.NEGATIVE)
    assert len(operations) == 19  # All except /openapi.json itself and /v1/embeddings.
    for status in (200, 400):
        for path in ("/v1/models/model:predict", "/rerank", "/v1/rerank", "/tokenize"):
            assert (f"POST {path}", status) in statuses, statuses
    assert ("GET /v1/models/model/versions/{version}", 404) in statuses
    assert requests.get(f"{server.url}/healthz", timeout=20).ok
