"""With --api_key_file, requests need a key, of which nothing appears in answers and logs."""

import pytest
import requests

from keras_bert.errors import InputError
from keras_bert.server.settings import Settings, read_api_keys
from tests.server.conftest import RERANKER, FakeVersion, rerank

KEYS = ("first-key", "secret/2=")
OPEN = ("/healthz", "/", "/page.js", "/page.css")
CLOSED = ("/metrics", "/openapi.json", "/export.json", "/v1/models", "/v1/models/model", "/absent")


@pytest.fixture(scope="module")
def server(serve_here):
    keys = tuple(key.encode() for key in KEYS)
    return serve_here({"model": FakeVersion(rerank, RERANKER)}, api_keys=keys)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (None, "Authorization: missing; expected `Bearer KEY` with a key of the server"),
        ("Bearer other-key", "Authorization: a key that the server does not have; expected"),
        ("Bearer first-key,secret/2=", "Authorization: a key that the server does not have"),
        ("Basic first-key", "Authorization: a key that the server does not have; expected"),
        ("Bearer \xe9", "Authorization: a key that the server does not have; expected"),
        ("Bearer", "Authorization: a key that the server does not have; expected"),
    ],
)
def test_requests_without_a_key_are_rejected(server, header, message, caplog):
    headers = {} if header is None else {"Authorization": header}
    for path in CLOSED:
        response = requests.get(server.url + path, headers=headers, timeout=20)
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert message in response.json()["error"]
        assert "key-" not in response.text
        assert "other-key" not in response.text
    for path in OPEN:
        assert requests.get(server.url + path, headers=headers, timeout=20).status_code == 200
    for path, text in (
        ("/rerank", lambda answer: answer["error"]),
        ("/v1/rerank", lambda answer: answer["message"]),
        ("/v1/embeddings", lambda answer: answer["error"]["message"]),
    ):
        response = requests.post(server.url + path, headers=headers, data="{", timeout=20)
        assert response.status_code == 401
        assert message in text(response.json())
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert not caplog.records


@pytest.mark.parametrize("header", [f"Bearer {KEYS[0]}", f"bearer  {KEYS[1]} "])
def test_requests_with_a_key_are_answered(server, header):
    headers = {"Authorization": header}
    for path in CLOSED[:-1]:
        assert requests.get(server.url + path, headers=headers, timeout=20).status_code == 200
    body = {"query": "a", "texts": ["a", "b"]}
    response = requests.post(f"{server.url}/rerank", json=body, headers=headers, timeout=20)
    assert [rank["index"] for rank in response.json()] == [0, 1]
    schema = requests.get(f"{server.url}/openapi.json", headers=headers, timeout=20).json()
    assert schema["security"] == [{"key": []}]
    assert schema["paths"]["/healthz"]["get"]["security"] == []
    assert schema["paths"]["/rerank"]["post"]["responses"].keys() > {"401", "403"}


def test_keys_are_read_from_a_file(tmp_path):
    (tmp_path / "keys").write_text("\n first-key \r\n\nsecret/2=")
    assert read_api_keys(str(tmp_path / "keys")) == (b"first-key", b"secret/2=")
    assert "first" not in repr(Settings(api_keys=(b"first-key",)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "has no key; expected one per line"),
        (b"a\nsome secret\n", "line 2 has a character that is not visible ASCII; expected one key"),
        (b"s\0cret\xff", "line 1 has a character that is not visible ASCII; expected one key per"),
    ],
)
def test_invalid_files_fail_with_one_line_without_their_content(tmp_path, content, message):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_api_keys(str(tmp_path / "keys"))
    assert str(caught.value).startswith(f"--api_key_file={tmp_path}/keys: {message}")
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None
