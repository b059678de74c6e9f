"""Compares the server's JSON parser with libraries on large request bodies, valid and hostile.

    .peers/bin/python -m benchmarks.json_parsers

Each parser reads each body in a process of its own. A line shows the seconds until the result or
the error, the longest time for which another thread could not run, and the memory needed, as a
multiple of the size of the body. The other thread stands for the server's event loop.

ijson yields events, from which the values would still have to be built, so the figures for ijson
are a lower bound. The other libraries return the whole document at once.
"""

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable

SIZE = 16_000_000
BODIES: dict[str, Callable[[], bytes]] = {
    "token ids": lambda: json.dumps({"inputs": {"input_ids": [[2023] * 512] * 5000}}).encode(),
    "texts": lambda: json.dumps({"instances": ["a text of five words " * 50] * 15_000}).encode(),
    "[],": lambda: b'{"instances":[' + b"[]," * (SIZE // 3) + b"[]]}",
    "0,": lambda: b'{"instances":[' + b"0," * (SIZE // 2) + b"0]}",
    '"a",': lambda: b'{"instances":[' + b'"a",' * (SIZE // 4) + b'"a"]}',
    "long text": lambda: b'{"signature_name":"' + b"\xff" * SIZE + b'"}',
    "long name": lambda: b'{"instances":[{"' + b"\xff" * SIZE + b'":"a"}]}',
    "missing comma": lambda: b'{"instances":["' + b"a" * SIZE + b'" "a"]}',
}
PARSERS = ("keras_bert", "json", "orjson", "msgspec", "ijson")


def parser_of(name: str) -> Callable[[bytes], object]:
    """Imports a library, and returns its function that parses a body."""
    if name == "keras_bert":
        from keras_bert.server.json_text import parse_object

        return parse_object
    if name == "ijson":
        import ijson

        def count_events(body: bytes) -> int:
            return sum(1 for _ in ijson.basic_parse(body, use_float=True))

        return count_events
    if name == "msgspec":
        import msgspec

        return msgspec.json.decode
    if name == "orjson":
        import orjson

        return orjson.loads
    return json.loads


class Watch(threading.Thread):
    """Measures the longest time for which this thread did not run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self.running = True

    def run(self) -> None:
        """Measures until `running` is false."""
        last = time.perf_counter()
        while self.running:
            time.sleep(0.001)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now


def measure(name: str, body: bytes) -> str:
    """Parses a body once with a parser; returns the figures of the output line."""
    parse = parser_of(name)
    parse(b'{"a": [1, "b"]}')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch = Watch()
    watch.start()
    time.sleep(0.05)
    started = time.perf_counter()
    outcome = "parsed"
    try:
        result = parse(body)
    except Exception:  # Each library has errors of its own.
        result, outcome = None, "rejected"
    seconds = time.perf_counter() - started
    time.sleep(0.05)
    watch.running = False
    watch.join()
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(body)
    del result
    return f"{seconds:7.2f} s {1000 * watch.longest:7.0f} ms {memory:7.1f} x  {outcome}"


def main() -> None:
    """Measures one parser and body, or runs itself once for each of them."""
    if len(sys.argv) == 3:
        print(measure(sys.argv[1], BODIES[sys.argv[2]]()))
        return
    for body in BODIES:
        for name in PARSERS:
            command = [sys.executable, "-m", "benchmarks.json_parsers", name, body]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{body:14}{name:11}{done.stdout.rstrip()}", flush=True)


if __name__ == "__main__":
    main()
