"""A server in a process of its own, with few files, stays responsive under hostile requests."""

import contextlib
import gzip
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

pytestmark = pytest.mark.slow  # Starts a server.

SIZE = 2 << 20  # the default limit of a body
HOSTILE = {
    "integers": (b'{"inputs":[' + b"0," * (SIZE // 2 - 10) + b"0]}", 400),
    "mixed numbers": (b'{"inputs":[' + b"0,0.5," * (SIZE // 6 - 10) + b"0]}", 400),
    "lists": (b'{"instances":[' + b"[]," * (SIZE // 3 - 10) + b"[]]}", 400),
    "as many lists as allowed": (b'{"inputs":[' + b"[1]," * ((1 << 17) - 9) + b'"a"]}', 400),
    "as many objects as allowed": (b'{"inputs":[' + b'{"a":0},' * ((1 << 17) - 9) + b'"a"]}', 400),
    "strings": (b'{"instances":[' + b'"a",' * (SIZE // 4 - 10) + b'"a"]}', 400),
    "numbers with NaN": (b'{"inputs":[' + b"1," * (SIZE // 2 - 10) + b"NaN]}", 400),
    "escapes": (b'{"instances":[1, "' + b"\\u00e9" * (SIZE // 6 - 10) + b'"]}', 400),
    "base 64": (b'{"instances":[1, {"b64":"' + b"QUFB" * (SIZE // 4 - 10) + b'"}]}', 400),
    "missing comma": (b'{"instances":["' + b"a" * (SIZE - 100) + b'" "a"]}', 400),
    "signature": (b'{"signature_name":"' + b"x" * (SIZE - 100) + b'","inputs":1}', 400),
    "name": (b'{"instances":[{"' + b"x" * (SIZE - 100) + b'":"a"}]}', 400),
    "not UTF-8": (b'{"instances":["' + b"\xff" * (SIZE - 100) + b'"]}', 400),
    "compressed": (gzip.compress(b'{"instances":[' + b'"a",' * (4 << 20) + b'"a"]}'), 413),
    "too large": (b"[" * (SIZE + 1), 413),
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
    """Returns how often the event loop was late by more than half a second, on a busy machine."""
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    count, ordinary = (
        float(re.search(f"event_loop_lag_seconds_{kind} (.+)", page)[1])
        for kind in ("count", 'bucket{le="0.5"}')
    )
    return int(count - ordinary)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_get_short_errors_and_do_not_stall_the_event_loop(server, name):
    body, status = HOSTILE[name]
    headers = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f") else {}
    before = stalls(server)

    def send(_) -> requests.Response:
        return requests.post(server.predict, data=body, headers=headers, timeout=120)

    with ThreadPoolExecutor(4) as threads:
        for response in threads.map(send, range(4)):
            assert response.status_code == status, response.text
            assert len(response.content) < 2000
            assert response.json()["error"]
    assert stalls(server) == before
