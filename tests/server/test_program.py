"""The program in a process of its own: hostile requests, new versions, and a graceful end."""

import contextlib
import gzip
import re
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import requests

from tests import processes
from tests.server.conftest import Server

pytestmark = pytest.mark.slow  # Starts a process.

SERVE = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
runpy.run_module("keras_bert", run_name="__main__", alter_sys=True)
"""
SIZE = 2 << 20  # the default limit of a body
HOSTILE = {
    "integers": (b'{"inputs":[' + b"0," * (SIZE // 2 - 10) + b"0]}", 400),
    "lists": (b'{"instances":[' + b"[]," * (SIZE // 3 - 10) + b"[]]}", 400),
    "as many lists as allowed": (b'{"inputs":[' + b"[1]," * ((1 << 17) - 9) + b'"a"]}', 400),
    "as many objects as allowed": (b'{"inputs":[' + b'{"a":0},' * ((1 << 17) - 9) + b'"a"]}', 400),
    "strings": (b'{"instances":[' + b'"a",' * (SIZE // 4 - 10) + b'"a"]}', 400),
    "escapes": (b'{"instances":[1, "' + b"\\u00e9" * (SIZE // 6 - 10) + b'"]}', 400),
    "base 64": (b'{"instances":[1, {"b64":"' + b"QUFB" * (SIZE // 4 - 10) + b'"}]}', 400),
    "missing comma": (b'{"instances":["' + b"a" * (SIZE - 100) + b'" "a"]}', 400),
    "signature": (b'{"signature_name":"' + b"x" * (SIZE - 100) + b'","inputs":1}', 400),
    "name": (b'{"instances":[{"' + b"x" * (SIZE - 100) + b'":"a"}]}', 400),
    "compressed": (gzip.compress(b'{"instances":[' + b'"a",' * (4 << 20) + b'"a"]}'), 413),
    "too large": (b"[" * (SIZE + 1), 413),
}


@pytest.fixture(scope="module")
def process(save_model, tmp_path_factory):
    """Starts the program with version 1 and few files; returns its process, folder and Server."""
    folder = tmp_path_factory.mktemp("export")
    save_model(folder / "1")
    options = [f"--export_dir={folder}", "--port=0", "--allowed_hosts=bert.example,other.example"]
    process = processes.start(["-c", SERVE, "serve", *options], stderr=processes.PIPE)
    try:
        output = ""
        while not (match := re.search(r"http://\S+", output)):
            line = process.stderr.readline()
            assert line, f"the server ended: {output}"
            output += line
        assert f"Serving version 1 of {folder} on tensorflow, float32" in output
        # Keep reading, so that the pipe never fills.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, folder, Server(match[0], partial(process.send_signal, signal.SIGTERM))
    finally:
        process.kill()
        process.wait()


def stalls(server) -> int:
    """Returns how often the event loop was late by more than half a second, on a busy machine."""
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    count, ordinary = (
        float(re.search(f"event_loop_lag_seconds_{kind} (.+)", page)[1])
        for kind in ("count", 'bucket{le="0.5"}')
    )
    return int(count - ordinary)


def test_requests_are_answered_with_few_files_and_many_idle_connections(process):
    _, _, server = process
    with contextlib.ExitStack() as stack:
        busy, *idle = [stack.enter_context(server.connect()) for _ in range(20)]
        server.send(busy, b"{", 2)
        idle += [stack.enter_context(server.connect()) for _ in range(180)]
        for client in idle[::2]:
            with contextlib.suppress(OSError):  # Already closed by the server.
                client.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert server.ask({"instances": ["a"]})[0] == 200
        assert idle[0].recv(10) == b"", "the first connections are closed"
        busy.sendall(b"}")
        assert b" 400 " in busy.recv(1000), "except for those with a request"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_get_short_errors_and_do_not_stall_the_event_loop(process, name):
    _, _, server = process
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


@pytest.mark.parametrize(("host", "status"), [("Other.Example:80", 200), ("third.example", 403)])
def test_named_hosts_are_allowed(process, host, status):
    url = process[2].url
    response = requests.get(f"{url}/healthz", headers={"Host": host}, timeout=60)
    assert response.status_code == status


def test_new_version_while_serving_and_drain_on_sigterm(process, save_model, tmp_path, wait_for):
    process, folder, server = process
    save_model(tmp_path / "later", 2)
    seen, failed, stop = [], [], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            status, answer = server.ask({"instances": ["a"]})
            if status != 200:
                failed.append((status, answer))
            else:
                seen.append(answer["predictions"][0]["version"])
            time.sleep(0.01)

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    wait_for(lambda: seen)
    (folder / "2").mkdir()
    (folder / "2" / "saved_model.pb").write_bytes(b"not a model")
    status = f"{server.url}/v1/models/model"
    wait_for(lambda: '"END"' in requests.get(status, timeout=20).text)
    assert seen[-1] == 1, "a broken version is not served"
    # No answer has a local path: errors of the model, the type, the JSON and the signature.
    answers = [
        requests.post(server.predict, data=body, timeout=20)
        for body in ('{"instances":["boom"]}', '{"instances":[1]}', "{", '{"signature_name":"x"}')
    ]
    assert {answer.status_code for answer in answers} == {400}
    for path in ("", "/metadata", "/versions/2", "/versions/2/metadata", "x"):
        answers.append(requests.get(status + path, timeout=20))
    for path in ("", "/export.json", "/openapi.json", "/metrics"):
        answers.append(requests.get(server.url + path, timeout=20))
    for answer in answers:
        for local in (str(folder), ".py", sys.prefix):
            assert local not in answer.text
    shutil.move(tmp_path / "later", folder / "3")
    wait_for(lambda: seen[-1] == 2, 30)
    stop.set()
    for thread in asking:
        thread.join()
    assert not failed
    assert set(seen) == {1, 2}

    # On SIGTERM, requests in flight are answered, new ones are rejected.
    body = b'{"instances": ["a"]}'
    with server.connect() as idle, server.connect() as slow:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in idle.recv(1000)
        server.send(slow, body[:-1], len(body))
        wait_for(lambda: server.metric("requests_in_flight") == 2)
        server.stop()

        def is_closed() -> bool:
            try:
                server.connect().close()
            except ConnectionRefusedError:
                return True
            return False

        wait_for(is_closed)
        slow.sendall(body[-1:])
        assert b" 200 " in slow.recv(1000)
    assert process.wait(10) == 0
