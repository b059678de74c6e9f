"""A server in a process of its own, with few files, stays responsive under hostile requests."""

import contextlib
import gzip
import json
import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

pytestmark = pytest.mark.slow  # Starts a server.

SIZE = 16_000_000
# Makes a name compressible to slightly more than 1 %.
NOISE = bytes(0x80 | byte for byte in random.Random(0).randbytes(200_000))
HOSTILE = {
    # The bodies: eight of 16 KB at a time, and a missing comma.
    "gzip": (8, gzip.compress(b'{"instances":[' + b"[]," * (SIZE // 3) + b"[]]}"), 413),
    "missing comma": (1, b'{"instances":["' + b"a" * (SIZE - 100) + b'" "a"]}', 400),
    "signature": (1, b'{"signature_name":"' + b"\xff" * (SIZE - 100) + b'"}', 400),
    "name": (1, b'{"instances":[{"' + b"\xff" * (SIZE - 100) + b'":"a"}]}', 400),
    "compressed name": (
        1,
        gzip.compress(b'{"instances":[{"' + NOISE + b"\xff" * (SIZE - 300_000) + b'":"a"}]}'),
        400,
    ),
}


@pytest.fixture(scope="module")
def server(start_process, export_dir):
    """Starts the program in a process that may open 64 files."""
    return start_process(export_dir, "--allowed_hosts=bert.example,other.example", max_files=64)


def test_health_is_answered_with_few_files_and_many_idle_connections(server):
    assert "because the process may open only 64 files" in server.log
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(server.connect()) for _ in range(100)]
        for client in idle[::2]:
            with contextlib.suppress(OSError):  # Already closed by the server.
                client.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert requests.get(f"{server.url}/healthz", timeout=60).ok
        assert idle[0].recv(10) == b"", "the first connections are closed"
        assert server.ask({"instances": ["a"]})[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("bert.example", 200), ("Other.Example:80", 200), ("third.example", 403), ("localhost", 200)],
)
def test_named_hosts_are_allowed(server, host, status):
    response = requests.get(f"{server.url}/healthz", headers={"Host": host}, timeout=60)
    assert response.status_code == status


def stalls(server) -> int:
    """Returns how often the event loop was late by more than a second."""
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    count, ordinary = (
        float(re.search(f"event_loop_lag_seconds_{kind} (.+)", page)[1])
        for kind in ("count", 'bucket{le="1.0"}')
    )
    return int(count - ordinary)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_do_not_stall_the_event_loop(server, name):
    number, body, status = HOSTILE[name]
    headers = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f") else {}
    before = stalls(server)

    def send(_) -> requests.Response:
        return requests.post(server.predict, data=body, headers=headers, timeout=120)

    with ThreadPoolExecutor(number) as threads:
        for response in threads.map(send, range(number)):
            assert response.status_code == status
            assert len(response.content) < 2000
            assert json.loads(response.content)["error"]
    assert stalls(server) == before
