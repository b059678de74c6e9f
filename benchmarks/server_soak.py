"""Runs the server for a long time while clients send valid and hostile requests and disconnect.

    apt-get install wrk
    .venv/bin/python benchmarks/server_soak.py --export_dir=serving/mrpc [--minutes=30]

`--export_dir` is an exported model of texts or pairs. wrk sends valid requests on `--clients`
connections. At the same time, one client sends hostile requests, one disconnects before the answer
or in the middle of the body, and one asks for /healthz every 20 ms. Its longest wait includes the
time in which the client itself had no core. The server's own metric, the lag of its event loop, if
it has one, does not.

A valid request is lost if wrk got no answer, and an error if its status is not 2xx. A hostile
request must be answered with a status of 400 to 499. The memory is the median of the server's RSS
in the second third of the time and in the last third.
"""

import contextlib
import gzip
import json
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import median

from absl import app, flags
from server import FLAGS, run_wrk, start_server

flags.DEFINE_float("minutes", 30.0, "minutes to run", lower_bound=0.1)

PATH = "/v1/models/model:predict"
VALID = {"text": "It rose by 3 percent on Monday."}
SIZE = 1_900_000  # Slightly below the default limit of a body.
# Name: (body, whether the body is compressed).
HOSTILE = {
    "gzip": (gzip.compress(b'{"instances":[' + b"[]," * (4 * SIZE) + b"[]]}"), True),
    "lists": (b'{"instances":[' + b"[]," * (SIZE // 3) + b"[]]}", False),
    "numbers": (b'{"instances":[' + b"0," * (SIZE // 2) + b"0]}", False),
    "missing comma": (b'{"instances":["' + b"a" * SIZE + b'" "a"]}', False),
    "many rows": (b'{"instances":[' + b'"a",' * 5000 + b'"a"]}', False),
    "signature": (b'{"signature_name":"' + b"\xff" * SIZE + b'"}', False),
    "name": (b'{"instances":[{"' + b"\xff" * SIZE + b'":"a"}]}', False),
    "large": (b'{"instances":["' + b"a" * 100_000_000 + b'"]}', False),
    "not JSON": (b"\xff" * 1000, False),
}


def connect(url: str) -> socket.socket:
    """Opens a connection to the server."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def head(length: int, compressed: bool = False) -> bytes:
    """Returns the request line and headers of a POST request whose body has `length` bytes."""
    encoding = "Content-Encoding: gzip\r\n" if compressed else ""
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{encoding}Content-Length: {length}\r\n\r\n"
    ).encode()


class SoakClients:
    """Sends requests in threads until `stop` is set, and records the answers and waits.

    `pid` is the process id of the server, whose memory is recorded too.
    """

    def __init__(self, url: str, pid: int):
        self.url = url
        self.stop = threading.Event()
        self.hostile = self.disconnected = 0
        self.unexpected: list[str] = []
        self.waits: list[float] = []
        self.memory: list[float] = []
        self._status = Path(f"/proc/{pid}/status")

    def start(self) -> list[threading.Thread]:
        """Starts all clients, and returns their threads."""
        steps = (self.send_hostile, self.disconnect, self.measure_memory)
        threads = [threading.Thread(target=self._repeat, args=[step]) for step in steps]
        threads.append(threading.Thread(target=self.watch_health))
        for thread in threads:
            thread.start()
        return threads

    def _repeat(self, step: Callable[[], None]) -> None:
        while not self.stop.is_set():
            step()
            self.stop.wait(0.5)

    def send_hostile(self) -> None:
        """Sends one request of each hostile kind; each must get a status of 400 to 499."""
        for name, (body, compressed) in HOSTILE.items():
            if self.stop.is_set():
                return
            answer = b""
            with contextlib.suppress(OSError), connect(self.url) as client:
                with contextlib.suppress(OSError):  # The server may answer before the end.
                    client.sendall(head(len(body), compressed) + body)
                answer = client.recv(100)
            self.hostile += 1
            if not answer.startswith(b"HTTP/1.1 4"):
                self.unexpected.append(f"{name}: {answer[:30]!r}")

    def disconnect(self) -> None:
        """Sends large requests and disconnects before the answer, or in the middle of the body."""
        body = json.dumps({"instances": [{"text": "word " * 100}] * 500}).encode()
        for sent in (len(body), len(body) // 2):
            with contextlib.suppress(OSError), connect(self.url) as client:
                client.sendall(head(len(body)) + body[:sent])
                time.sleep(0.2)
            self.disconnected += 1

    def measure_memory(self) -> None:
        """Appends the server's RSS in MiB to `memory`."""
        text = self._status.read_text()
        self.memory.append(int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024)

    def watch_health(self) -> None:
        """Requests /healthz every 20 ms, and appends the seconds until each answer to `waits`."""
        with connect(self.url) as client:
            while not self.stop.wait(0.02):
                started = time.perf_counter()
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                if not client.recv(1000).startswith(b"HTTP/1.1 200"):
                    self.unexpected.append("healthz")
                self.waits.append(time.perf_counter() - started)


def main(_) -> None:
    """Runs the clients, and prints the counts, waits and memory that they recorded."""
    server, url = start_server()
    clients = SoakClients(url, server.pid)
    threads = clients.start()
    try:
        info = next(Path(FLAGS.export_dir).glob("[0-9]*/export.json"))
        pair = json.loads(info.read_text(encoding="utf-8")).get("pair")
        row = {**VALID, "text_pair": VALID["text"]} if pair else VALID
        body = json.dumps({"instances": [row]})
        lua = f"wrk.method = 'POST'\nwrk.body = [[{body}]]\n"
        report = run_wrk(url + PATH, lua, FLAGS.clients, 60 * FLAGS.minutes)
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
    finally:
        clients.stop.set()
        for thread in threads:
            thread.join()
        server.send_signal(signal.SIGTERM)
    lost = re.search(r"Socket errors: (.*)", report)
    errors = re.search(r"Non-2xx or 3xx responses: (\d+)", report)
    lags = re.findall(r'loop_lag_seconds_bucket{le="(.+)"} (.+)', metrics)
    waits, third = sorted(clients.waits), len(clients.memory) // 3
    middle, last = median(clients.memory[third : 2 * third]), median(clients.memory[2 * third :])
    print(f"valid requests     {re.search(r'([0-9]+) requests in', report)[1]}")
    print(f"lost               {lost[1] if lost else 0}")
    print(f"errors             {errors[1] if errors else 0}")
    print(f"hostile requests   {clients.hostile}")
    print(f"disconnections     {clients.disconnected}")
    print(f"unexpected answers {len(clients.unexpected)} {clients.unexpected[:5]}")
    print(f"longest wait       {1000 * waits[-1]:.0f} ms for /healthz, of {len(waits)}")
    print(f"99.9 % of waits    below {1000 * waits[int(0.999 * len(waits))]:.0f} ms")
    if lags:
        print("event-loop lag     " + ", ".join(f"{float(n):.0f} <= {le} s" for le, n in lags))
    print(f"memory             {middle:.0f} MiB, then {last:.0f} MiB ({last / middle - 1:+.1%})")
    print(f"exit code          {server.wait(60)}")


if __name__ == "__main__":
    app.run(main)
