"""Requests from pages of other sites are rejected by their Host and Origin headers."""

import pytest
from aiohttp.test_utils import make_mocked_request

from keras_bert.server.app import check_origin
from keras_bert.server.protocol import RestError


def check(host: str | None, method: str = "GET", allowed=(), **headers: str) -> None:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if host is not None:
        headers["Host"] = host
    check_origin(make_mocked_request(method, "/", headers), allowed)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8501", "a.localhost", "127.0.0.1:8501", "10.0.0.7", "[::1]:8501"],
)
def test_addresses_and_localhost_are_allowed(host):
    check(host)


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost"),
        *("127.0.0.1:x", "x/y", "", None),
    ],
)
def test_other_hosts_are_rejected(host):
    with pytest.raises(RestError, match="expected an IP address, localhost, or a name") as error:
        check(host)
    assert error.value.status == 403


def test_named_hosts_are_allowed():
    check("bert.example:80", allowed=["bert.example"])
    check("Bert.Example.", allowed=["bert.example"])
    check("any.example", allowed=["*"])


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:3000", "http://["]
)
def test_foreign_pages_must_send_json(origin):
    with pytest.raises(RestError, match="expected application/json") as error:
        check("localhost:8501", "POST", Origin=origin, Content_Type="text/plain")
    assert error.value.status == 415
    check("localhost:8501", "POST", Origin=origin, Content_Type="application/json; charset=utf-8")
    check("localhost:8501", "GET", Origin=origin)


def test_own_page_and_programs_may_send_any_content_type():
    check("localhost:8501", "POST", Origin="http://localhost:8501", Content_Type="text/plain")
    check("localhost:8501", "POST", Content_Type="text/plain")
