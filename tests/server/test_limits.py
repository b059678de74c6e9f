"""Large, slow, invalid and excess requests are rejected or cancelled; others are answered."""

import contextlib
import gzip
import json
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from keras_bert.server.settings import Settings
from tests.server.conftest import FakeVersion

pytestmark = pytest.mark.slow  # Waits for timeouts.


def test_compressed_bodies_are_limited_by_their_decompressed_size(server):
    body = b'{"instances": ["a"]}'
    large = gzip.compress(b'{"instances": ["' + b"a" * 100_000_000 + b'"]}', 1)
    for encoding, data, status, message in (
        ("gzip", gzip.compress(body), 200, ""),
        ("deflate", zlib.compress(body), 200, ""),
        ("gzip", large, 413, "body size 2000000 exceeded"),
        ("compress", b"x", 415, "Content-Encoding: compress; expected gzip, deflate or none"),
        ("gzip", b"{}", 400, "The request body is incomplete or invalid: "),
        ("gzip", gzip.compress(body, mtime=0)[:-12], 400, "is not JSON"),
    ):
        headers = {"Content-Encoding": encoding}
        response = requests.post(server.predict, data=data, headers=headers, timeout=20)
        assert response.status_code == status
        assert message in response.json().get("error", "")


def test_long_texts_are_accepted_and_too_large_bodies_rejected(server):
    assert server.ask({"instances": ["x" * 1_000_000]})[0] == 200
    status, answer = server.ask({"instances": ["x" * 2_000_001]})
    assert status == 413
    assert "Maximum request body size 2000000 exceeded" in answer["error"]
    # Rejected before the body is sent, and also without a Content-Length.
    with server.connect() as client:
        server.send(client, b"", 99_999_999)
        assert b" 413 " in client.recv(1000)
    chunks = (b"x" * 100_000 for _ in range(50))
    assert requests.post(server.predict, data=chunks, timeout=20).status_code == 413


def test_slow_clients_are_disconnected(server):
    started = time.monotonic()
    with server.connect() as body, server.connect() as headers, server.connect() as silent:
        server.send(body, b"{", 10)
        headers.sendall(b"POST /v1/models/model:predict HTTP/1.1\r\nHo")
        assert server.ask({"instances": ["a"]})[0] == 200, "others are answered"
        assert b" 408 " in body.recv(1000)
        assert headers.recv(1000) == b""
        assert silent.recv(1000) == b""
    assert time.monotonic() - started < 10


def test_slow_encoding_times_out_and_ends(serve_here, monkeypatch):
    parts = []

    def encode_slowly(*_, **__):
        for number in range(200):
            parts.append(number)
            time.sleep(0.05)
            yield b" "

    monkeypatch.setattr("keras_bert.server.protocol.encode_rows", encode_slowly)
    server = serve_here(FakeVersion(), request_timeout_s=1)
    status, answer = server.ask({"instances": ["a"] * 1000})
    assert (status, answer["error"]) == (504, "The model did not respond within 1 seconds")
    assert parts
    time.sleep(0.3)
    made = len(parts)
    time.sleep(0.3)
    assert len(parts) == made < 200


def test_remaining_rows_are_not_run_after_a_timeout(server):
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(server.ask, [{"instances": ["work 0.4"] * 4096}] * 2))
    assert [status for status, _ in answers] == [504, 504]
    assert answers[0][1]["error"] == "The model did not respond within 1.5 seconds"
    runs = server.metric("batch_rows_count")
    assert server.ask({"instances": ["a"]})[0] == 200
    time.sleep(1)
    # The batches that had started, at most one per thread, and the batch of "a".
    assert server.metric("batch_rows_count") - runs <= Settings().num_batch_threads + 1
    status, answer = server.ask({"instances": ["a"] * 4097})
    assert (status, answer["error"]) == (400, "The request has 4097 rows; expected at most 4096")


def test_requests_in_progress_and_their_bytes_are_limited(serve_here):
    body = json.dumps({"instances": ["x" * 600]}).encode()
    for settings, message in (
        ({"max_waiting_bytes": 1000}, "and their answers exceed the limit of 1000 bytes"),
        ({"max_in_flight": 1}, "too many requests in progress"),
    ):
        server = serve_here(FakeVersion(), **settings)
        with server.connect() as first:
            server.send(first, body[:-1], len(body))
            time.sleep(0.2)
            status, answer = server.ask(body)
            assert status == 503
            assert message in answer["error"]
            assert server.ask(iter([body]))[0] == 503, "without a Content-Length, too"
            first.sendall(body[-1:])
            assert b" 200 " in first.recv(1000)
        assert server.ask(body)[0] == 200


@pytest.mark.parametrize("framing", [b"Content-Length: 900", b"Transfer-Encoding: chunked"])
def test_bodies_that_do_not_arrive_do_not_count(serve_here, framing):
    server = serve_here(FakeVersion(), max_waiting_bytes=1000, max_request_bytes=1000)
    with contextlib.ExitStack() as clients:
        for _ in range(3):
            client = clients.enter_context(server.connect())
            head = b"POST /v1/models/model:predict HTTP/1.1\r\nHost: localhost\r\n" + framing
            client.sendall(head + b"\r\n\r\n1\r\n{")
        time.sleep(0.2)
        assert server.ask({"instances": ["a"]})[0] == 200


@pytest.fixture
def large(serve_here):
    """Returns a function: (**settings) -> server, request with a response larger than buffers."""

    def start(**settings):
        limits = {"max_request_rows": 70_000, "max_batch_size": 70_000}
        server = serve_here(FakeVersion(), **(limits | settings))
        return server, json.dumps({"instances": ["a"] * 70_000}).encode()

    return start


def test_client_that_does_not_read_the_response_is_disconnected(large, wait_for):
    server, body = large(request_timeout_s=4)
    with server.connect(4096) as client:
        server.send(client, body)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.metric("requests_in_flight") == 2
        wait_for(lambda: server.metric("requests_in_flight") == 1, 30)
        received = 0
        while part := client.recv(1 << 20):
            received += len(part)
    assert 0 < received < 4_000_000


def test_total_bytes_of_answers_are_limited(large, wait_for):
    """A slow reader holds an answer above the limit; others are rejected until it has been read."""
    server, body = large(max_waiting_bytes=2_000_000)
    with server.connect(4096) as client:
        server.send(client, body)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        response = requests.post(server.predict, data=body, timeout=30)
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "1"
        assert response.json()["error"] == (
            "The server is overloaded: the requests in progress and their answers exceed the limit "
            "of 2000000 bytes; try again later"
        )
    wait_for(lambda: server.metric("requests_in_flight") == 1)
    assert server.ask(body)[0] == 200


def test_drain_waits_for_responses_that_are_read_slowly(large):
    server, body = large()
    with server.connect(4096) as client:
        server.send(client, body)
        answer = client.recv(1000)
        length = int(answer.partition(b"Content-Length: ")[2].split()[0])
        server.stop()
        time.sleep(0.5)
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        while part := client.recv(1 << 20):
            answer += part
    assert len(answer.partition(b"\r\n\r\n")[2]) == length > 3_000_000


def test_requests_of_disconnected_clients_are_cancelled(serve_here, wait_for):
    server = serve_here(FakeVersion(), num_batch_threads=1)
    clients = [server.connect() for _ in range(6)]
    for client in clients:
        server.send(client, b'{"instances": ["work 2"]}')
    wait_for(lambda: server.metric("requests_in_flight") == 7)
    for client in clients:
        client.close()
    wait_for(lambda: server.metric("requests_in_flight") == 1)
    assert server.metric("queue_requests") == 0
    assert server.metric("batch_rows_count") == 0, "the first one is still running"
    assert server.ask({"instances": ["a"]})[0] == 200
    assert server.metric('requests_total{route="predict",status="499"}') == 6
    assert server.metric("batch_rows_count") == 2, "the queued ones are not run"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 not HTTP\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["another protocol", "a bad length", "a long path"],
)
def test_invalid_http_is_rejected_and_not_logged(server, caplog, sent):
    with server.connect() as client:
        client.sendall(sent)
        assert b" 400 " in client.recv(1000)
    assert not caplog.records


def test_unexpected_errors_are_logged_and_do_not_reach_clients(serve_here, caplog):
    def fail(signature, inputs):
        raise ValueError("/home/me/secret")

    status, answer = serve_here(FakeVersion(fail)).ask({"instances": ["a"]})
    assert status == 500
    assert answer == {"error": "Internal server error; the log of the server has the details"}
    assert "/home/me/secret" in caplog.text


def test_looking_for_versions_continues_after_an_error(serve_here, wait_for, caplog):
    class Failing(FakeVersion):
        looks = 0

        def refresh(self) -> bool:
            self.looks += 1
            if self.looks < 3:
                raise (ValueError("unexpected"), OSError("no folder"))[self.looks - 1]
            self.number = 2
            return True

    server = serve_here(Failing(), poll_interval_s=0.05)
    wait_for(lambda: server.metric('model_version{model="model"}') == 2)
    assert "Cannot check for new versions: no folder" in caplog.text
