"""Bodies of 16 MB are parsed or rejected in short steps, little memory and short messages."""

import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Callable

import pytest

from keras_bert.server import json_text
from keras_bert.server.errors import RestError
from keras_bert.server.protocol import Input, decode_call
from keras_bert.server.responses import error_response

SIZE = 16_000_000
MEGABYTE = 1_000_000
SIGNATURES = {
    "serving_default": {"text": Input("string", (None,))},
    "pair": {"text": Input("string", (None,)), "text_pair": Input("string", (None,))},
    "ids": {"input_ids": Input("int32", (None, None))},
}


def column(values: bytes, signature: bytes = b"ids") -> bytes:
    """Returns a request in columnar format."""
    return b'{"signature_name":"%b","inputs":[%b]}' % (signature, values)


BODIES: dict[str, Callable[[], bytes]] = {
    "integers": lambda: column(b"[" + b"0," * (SIZE // 2) + b"0]"),
    # Most of the 8192 numbers of a step are integers.
    "mixed": lambda: column(b"[" + (b"0," * 8000 + b"0.5,") * (SIZE // 16004) + b"0]"),
    "floats at last": lambda: column(b"[" + b"0," * (SIZE // 2) + b"0.5," * 10_000 + b"0]"),
    "large at last": lambda: column(b"[" + b"0," * (SIZE // 2) + b"99999999999," * 9000 + b"0]"),
    "token ids": lambda: column(b",".join([b"[" + b"2023," * 511 + b"0]"] * (SIZE // 2560))),
    "lists": lambda: b'{"instances":[' + b"[]," * (SIZE // 3) + b"[]]}",
    "strings": lambda: b'{"instances":[' + b'"a",' * (SIZE // 4) + b'"a"]}',
    "short lists": lambda: b'{"instances":[' + b"[1]," * (SIZE // 4) + b'"a"]}',
    "missing comma": lambda: b'{"instances":["' + b"a" * SIZE + b'" "a"]}',
    "escapes": lambda: b'{"instances":["' + b"\\u00e9" * (SIZE // 6) + b'"]}',
    "base 64": lambda: b'{"instances":[{"b64":"' + b"QUFB" * (SIZE // 4) + b'"}]}',
    "signature": lambda: b'{"signature_name":"' + b"\xff" * SIZE + b'","instances":["a"]}',
    "name": lambda: b'{"instances":[{"' + b"\xff" * SIZE + b'":"a"}]}',
    "name of a member": lambda: b'{"' + b"\xff" * SIZE + b'":1}',
}


@pytest.fixture(autouse=True)
def few_objects_to_collect():
    """Exempts existing objects from garbage collection, as the server does."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def longest_hold(function: Callable, *arguments) -> float:
    """Calls a function, and returns the longest CPU time of a step that other threads wait for.

    Python can switch to another thread at each call of a function, so that a step is at most the
    time between two calls or returns. The CPU time of a thread does not depend on the machine's
    other work.
    """
    longest, last = 0.0, time.thread_time()

    def observe(*_) -> None:
        nonlocal longest, last
        now = time.thread_time()
        longest, last = max(longest, now - last), now

    sys.setprofile(observe)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return longest


def answer(body: bytes) -> bytes:
    """Decodes a request; returns the error response, or nothing if the request is valid."""
    try:
        decode_call(body, SIGNATURES, 4096)
    except RestError as error:
        return error_response(error.status, error.message).body
    return b""


@pytest.mark.slow  # Several seconds.
@pytest.mark.parametrize("name", BODIES)
def test_large_bodies_are_decoded_in_short_steps(name, monkeypatch):
    monkeypatch.setattr(json_text, "MAX_VALUES", 1 << 16)  # The profiler slows down each call.
    body = BODIES[name]()
    # Of three, because a busy machine slows memory and caches, and with them CPU time.
    assert min(longest_hold(answer, body) for _ in range(3)) < 0.1


@pytest.mark.slow  # Several seconds.
@pytest.mark.parametrize("name", BODIES)
def test_large_bodies_need_little_memory(name):
    body = BODIES[name]()
    tracemalloc.start()
    try:
        answer(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * len(body) + 5 * MEGABYTE


@pytest.mark.parametrize("name", ["signature", "name", "name of a member", "missing comma"])
def test_errors_of_long_bodies_are_short(name):
    assert 0 < len(answer(BODIES[name]())) < 2000


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"signature_name": "é" * 1000, "instances": ["a"]}, "é" * 200 + '..." not found'),
        ({"instances": [{"é" * 400: "a"}]}, f"key: {'é' * 200}... of 'instances' list"),
        ({"instances": [{"é" * 400: "a"}]}, f"named input: {'é' * 200}..."),
        ({"é" * 501: 1}, "Name of object member has 1002 bytes; expected at most 1000. at offset"),
    ],
)
def test_names_are_truncated_in_errors(document, message):
    body = json.dumps(document, ensure_ascii=False).encode()
    assert message in json.loads(answer(body))["error"]


def test_all_error_messages_are_limited():
    response = error_response(400, "x" * 100_000)
    assert json.loads(response.body)["error"] == "x" * 1000 + "..."
