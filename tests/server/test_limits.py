"""Large, slow, invalid and excess requests are rejected or cancelled; others are answered."""

import gzip
import json
import shutil
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
import tensorflow as tf

from keras_bert.server import protocol
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Versions

pytestmark = pytest.mark.slow  # Starts servers.


def test_compressed_bodies_are_limited_by_their_decompressed_size(server):
    data = gzip.compress(b'{"instances": ["a"]}')
    headers = {"Content-Encoding": "gzip"}
    assert requests.post(server.predict, data=data, headers=headers, timeout=20).ok
    headers["Content-Encoding"] = "deflate"
    body = zlib.compress(b'{"instances": ["a"]}')
    assert requests.post(server.predict, data=body, headers=headers, timeout=20).ok
    # 100 MB compressed to 100 kB.
    data = gzip.compress(b'{"instances": ["' + b"a" * 100_000_000 + b'"]}', 1)
    headers["Content-Encoding"] = "gzip"
    response = requests.post(server.predict, data=data, headers=headers, timeout=20)
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("encoding", "body", "status", "message"),
    [
        ("compress", b"x", 415, "Content-Encoding: compress; expected gzip, deflate or none"),
        ("gzip", b"{}", 400, "The request body is incomplete or invalid: "),
        ("gzip", gzip.compress(b'{"instances": ["a"]}', mtime=0)[:-12], 400, "is not JSON"),
    ],
)
def test_bodies_that_cannot_be_decompressed_are_rejected(server, encoding, body, status, message):
    headers = {"Content-Encoding": encoding}
    response = requests.post(server.predict, data=body, headers=headers, timeout=20)
    assert response.status_code == status
    assert message in response.json()["error"]


def test_long_texts_are_accepted_and_too_large_bodies_rejected(server):
    assert server.ask({"instances": ["x" * 1_000_000]})[0] == 200
    status, answer = server.ask({"instances": ["x" * 2_000_001]})
    assert (status, answer["error"]) == (
        413,
        "The request body is larger than the limit of 2000000 bytes",
    )
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


def test_slow_response_times_out(server):
    status, answer = server.ask({"instances": ["work 2000000"]})
    assert (status, answer["error"]) == (504, "The model did not respond within 1.5 seconds")


def test_slow_encoding_times_out_and_ends(serve_here, export_dir, monkeypatch):
    parts = []

    def encode_slowly(*_):
        for number in range(200):
            parts.append(number)
            time.sleep(0.05)
            yield b" "

    monkeypatch.setattr(protocol, "encode_call", encode_slowly)
    server = serve_here(export_dir, request_timeout_s=2)
    status, answer = server.ask({"instances": ["a"] * 1000})
    assert (status, answer["error"]) == (504, "The model did not respond within 2 seconds")
    assert parts
    time.sleep(0.5)
    made = len(parts)
    time.sleep(0.5)
    assert len(parts) == made < 200


def test_padding_of_outputs_of_unknown_width_is_limited(serve_here, tmp_path):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def letters(text):
        return {"letters": tf.strings.bytes_split(text).to_tensor("")}

    tf.saved_model.save(tf.Module(), str(tmp_path / "1"), {"serving_default": letters})
    server = serve_here(tmp_path, request_timeout_s=120)
    long = "a " * 400
    rows = ["a"] * 4095 + [long]
    status, answer = server.ask({"instances": rows})
    assert status == 400
    message = (
        "4096 rows, and a text or list of length 800; all rows of the response would be padded"
    )
    assert message in answer["error"]
    # A long text and 63 short ones, and a thousand texts of unequal length.
    for rows in (["a"] * 63 + [long], ["the cat"] * 999 + [long[:200]]):
        body = json.dumps({"instances": rows})
        response = requests.post(server.predict, data=body, timeout=120)
        assert response.status_code == 200
        assert len(response.json()["predictions"]) == len(rows)
        assert len(response.content) < 5_000_000


def test_remaining_rows_are_not_run_after_a_timeout(server):
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(server.ask, [{"instances": ["work 10000"] * 4096}] * 2))
    assert [status for status, _ in answers] == [504, 504]
    runs = server.metric("batch_rows_count")
    started = time.monotonic()
    assert server.ask({"instances": ["a"]})[0] == 200
    assert time.monotonic() - started < 2
    time.sleep(1.5)
    # The batches that had started, at most one per thread, and the batch of "a".
    assert server.metric("batch_rows_count") - runs <= Settings().num_batch_threads + 1
    status, answer = server.ask({"instances": ["a"] * 4097})
    assert (status, answer["error"]) == (400, "The request has 4097 rows; expected at most 4096")


def test_full_queue_is_reported_before_the_body_is_sent(serve_here, export_dir, wait_for):
    server = serve_here(export_dir, max_waiting=1, num_batch_threads=1)
    with server.connect() as runs, server.connect() as waits, server.connect() as rejected:
        server.send(runs, b'{"instances": ["work 100000"]}')
        wait_for(lambda: server.metric("requests_in_flight") == 2)
        server.send(waits, b'{"instances": ["a"]}')
        wait_for(lambda: server.metric("queue_requests") == 1)
        server.send(rejected, b"{", 1000)
        assert b" 503 " in rejected.recv(1000)
        assert b" 200 " in runs.recv(1000)
        assert b" 200 " in waits.recv(1000)


def test_total_bytes_of_waiting_requests_are_limited(serve_here, export_dir):
    server = serve_here(export_dir, max_waiting_bytes=1000)
    body = json.dumps({"instances": ["x" * 600]}).encode()
    with server.connect() as first:
        server.send(first, body[:-1], len(body))
        time.sleep(0.2)
        status, answer = server.ask(body)
        assert status == 503
        assert (
            "the bodies of the waiting requests exceed the limit of 1000 bytes" in answer["error"]
        )
        chunks = iter([body[:500], body[500:]])  # Without a Content-Length.
        assert server.ask(chunks)[0] == 503
        first.sendall(body[-1:])
        assert b" 200 " in first.recv(1000)
    assert server.ask(body)[0] == 200


@pytest.fixture
def large(serve_here, export_dir):
    """Returns a function: (**settings) -> server, request with a response larger than buffers."""

    def start(**settings):
        limits = {"max_request_rows": 70_000, "max_batch_size": 70_000}
        server = serve_here(export_dir, **(limits | settings))
        return server, json.dumps({"instances": ["a"] * 70_000}).encode()

    return start


def test_client_that_does_not_read_the_response_is_disconnected(large, wait_for):
    server, body = large(request_timeout_s=10)
    with server.connect(4096) as client:
        server.send(client, body)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.metric("requests_in_flight") == 2
        wait_for(lambda: server.metric("requests_in_flight") == 1, 30)
        received = 0
        while part := client.recv(1 << 20):
            received += len(part)
    assert 0 < received < 5_000_000


def test_total_bytes_of_answers_are_limited(large, wait_for):
    """Slow readers hold two answers of 6 MB; a third one is rejected until they have been read."""
    server, body = large(max_waiting_bytes=15_000_000)
    with server.connect(4096) as first, server.connect(4096) as second:
        for client in (first, second):
            server.send(client, body)
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        response = requests.post(server.predict, data=body, timeout=30)
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "1"
        assert response.json()["error"] == (
            "The server is overloaded: the answers that are not yet sent exceed the limit of "
            "15000000 bytes; try again later"
        )
        assert server.ask({"instances": ["a"]})[0] == 200, "small answers have room"
    wait_for(lambda: server.metric("requests_in_flight") == 1)
    assert server.ask(body)[0] == 200


def test_an_answer_larger_than_the_limit_is_sent_alone(large):
    server, body = large(max_waiting_bytes=2_000_000)
    with server.connect(4096) as client:
        server.send(client, body)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.ask({"instances": ["a"]})[0] == 503


def test_parts_of_an_answer_count(serve_here, export_dir):
    """The first slices of a large request are kept while the last ones are computed."""
    server = serve_here(export_dir, max_waiting_bytes=30_000, max_batch_size=100)
    with server.connect() as client:
        texts = ["a"] * 800 + ["work 300000"]  # 8 slices of 3,500 bytes
        server.send(client, json.dumps({"instances": texts}).encode())
        time.sleep(1)
        status, answer = server.ask({"instances": ["a"] * 100})
        assert (status, "the answers that are not yet sent" in answer["error"]) == (503, True)


def test_drain_waits_for_responses_that_are_read_slowly(large):
    server, body = large()
    with server.connect(4096) as client:
        server.send(client, body)
        answer = client.recv(1000)
        length = int(answer.partition(b"Content-Length: ")[2].split()[0])
        server.stop()
        time.sleep(1)
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        while part := client.recv(1 << 20):
            answer += part
    assert len(answer.partition(b"\r\n\r\n")[2]) == length > 5_000_000


def test_requests_of_disconnected_clients_are_cancelled(serve_here, export_dir, wait_for):
    server = serve_here(export_dir, num_batch_threads=1)
    body = json.dumps({"instances": ["work 100000"]}).encode()
    clients = [server.connect() for _ in range(6)]
    for client in clients:
        server.send(client, body)
    wait_for(lambda: server.metric("requests_in_flight") == 7)
    for client in clients:
        client.close()
    wait_for(lambda: server.metric("requests_in_flight") == 1)
    assert server.metric("queue_requests") == 0
    assert server.metric("batch_rows_count") == 0, "the first one is still running"
    assert server.ask({"instances": ["a"]})[0] == 200
    assert server.metric('requests_total{route="predict",status="499"}') == 6
    assert server.metric("batch_rows_count") == 2, "the queued ones are not run"


@pytest.mark.parametrize("used", [True, False], ids=["after a request", "first data"])
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 not HTTP\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
    ids=["another protocol", "a bad length", "a long path", "a bad chunk"],
)
def test_invalid_http_is_logged_in_one_line(serve_here, export_dir, caplog, sent, used):
    server = serve_here(export_dir)
    with server.connect() as client:
        if used:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in client.recv(1000)
        client.sendall(sent)
        assert b" 400 " in client.recv(1000)
    records = [record for record in caplog.records if record.name == "aiohttp.server"]
    assert [(one.levelname, one.exc_info) for one in records] == [("WARNING", None)]
    assert "\n" not in records[0].getMessage()


def test_looking_for_versions_continues_after_an_error(
    serve_here, export_dir, tmp_path, wait_for, monkeypatch
):
    refresh, looks = Versions.refresh, []

    def fail_once(self) -> bool:
        looks.append(1)
        if len(looks) == 1:
            raise ValueError("unexpected")
        return refresh(self)

    monkeypatch.setattr(Versions, "refresh", fail_once)
    shutil.copytree(export_dir / "1", tmp_path / "1")
    server = serve_here(tmp_path, poll_interval_s=0.05)
    shutil.copytree(export_dir / "1", tmp_path / "2")
    wait_for(lambda: server.metric("model_version") == 2)
