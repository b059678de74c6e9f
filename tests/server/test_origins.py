"""Requests from pages of other sites are rejected by their Host and Origin headers."""

import pytest
from aiohttp.test_utils import make_mocked_request

from keras_bert.server.app import check_origin
from keras_bert.server.protocol import RestError

TEXT, JSON = "text/plain", "application/json; charset=utf-8"


def check(host: str | None, method: str = "GET", allowed=(), **headers: str) -> int:
    """Returns the status of a request's error, or 200."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers |= {} if host is None else {"Host": host}
    try:
        check_origin(make_mocked_request(method, "/", headers), allowed)
    except RestError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        *((host, (), 200) for host in ("localhost", "LOCALHOST:8501", "a.localhost")),
        *((host, (), 200) for host in ("127.0.0.1:8501", "10.0.0.7", "[::1]:8501")),
        *((host, (), 403) for host in ("evil.example", "localhost.evil.example", "notlocalhost")),
        *((host, (), 403) for host in ("127.0.0.1.evil.example", "127.0.0.1:x", "x/y", "", None)),
        *((host, ["bert.example"], 200) for host in ("bert.example:80", "Bert.Example.")),
        ("any.example", ["*"], 200),
    ],
)
def test_host_is_an_address_or_allowed(host, allowed, status):
    assert check(host, allowed=allowed) == status


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:3000", "http://["]
)
def test_foreign_pages_must_send_json(origin):
    assert check("localhost:8501", "POST", Origin=origin, Content_Type=TEXT) == 415
    assert check("localhost:8501", "POST", Origin=origin, Content_Type=JSON) == 200
    assert check("localhost:8501", "GET", Origin=origin) == 200


def test_the_demo_page_and_programs_may_send_any_content_type():
    address = "http://localhost:8501"
    assert check("localhost:8501", "POST", Origin=address, Content_Type=TEXT) == 200
    assert check("localhost:8501", "POST", Content_Type=TEXT) == 200
