"""Fixtures: a fake model, servers in threads, and the demo page in a browser."""

import asyncio
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import requests

from keras_bert.server.protocol import TOKENIZE_SIGNATURE, RestError

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LABELS = ["negative", "neutral", "positive"]
CLASSIFIER = {
    "task": "classification",
    "pair": False,
    "labels": LABELS,
    "signatures": {
        "serving_default": {
            "inputs": {"text": ["string", [-1]]},
            "outputs": {
                "label": ["string", [-1]],
                "probabilities": ["float32", [-1, 3]],
                "version": ["int32", [-1]],
            },
        },
        "token_ids": {
            "inputs": {"input_ids": ["int32", [-1, -1]], "weights": ["int32", [-1, -1]]},
            "outputs": {"sum": ["int32", [-1]]},
        },
    },
}


def classify(signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a label that depends on the length; rejects "boom"; "work N" takes N seconds."""
    if signature == "token_ids":
        return {"sum": (inputs["input_ids"] * inputs["weights"]).sum(1)}
    texts = inputs["text"].tolist()
    if b"boom" in texts:
        raise RestError("a boom")
    time.sleep(max(float(text[5:]) if text[:5] == b"work " else 0 for text in [*texts, b""]))
    labels = np.array([len(text.decode("utf-8", "replace")) % 3 for text in texts], int)
    return {
        "label": np.array([LABELS[label].encode() for label in labels], object),
        "probabilities": np.eye(3, dtype=np.float32)[labels],
        "version": np.ones(len(texts), np.int32),
    }


EMBEDDER_OUTPUTS = {
    "mean": ["float32", [-1, 16]],
    "num_tokens": ["int32", [-1]],
    "truncated": ["bool", [-1]],
}
EMBEDDER = {
    "task": "embedding",
    "normalize": True,
    "matryoshka_sizes": [4, 16],
    "max_seq_length": 12,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "signatures": {
        "serving_default": {"inputs": {"text": ["string", [-1]]}, "outputs": EMBEDDER_OUTPUTS},
        "token_ids": {
            "inputs": {
                name: ["int32", [-1, -1]] for name in ("input_ids", "input_mask", "segment_ids")
            },
            "outputs": EMBEDDER_OUTPUTS,
        },
    },
}


def embed(signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns vectors of length 1, and the number of bytes or token ids as that of tokens."""
    if signature == "token_ids":
        assert not (inputs["input_ids"] * (1 - inputs["input_mask"])).any()
        lengths = inputs["input_mask"].sum(1)
    else:
        lengths = np.array([len(text) for text in inputs["text"]], np.int32)
    vectors = np.sin(lengths[:, np.newaxis] * np.arange(1.0, 17)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1)[:, np.newaxis]
    return {"mean": vectors, "num_tokens": lengths, "truncated": lengths > 12}


RERANKER = {
    "task": "classification",
    "problem_type": "reranking",
    "pair": True,
    "labels": [],
    "max_seq_length": 12,
    "cls_token_id": 101,
    "sep_token_id": 102,
    "signatures": {
        "serving_default": {
            "inputs": {"text": ["string", [-1]], "text_pair": ["string", [-1]]},
            "outputs": {"logits": ["float32", [-1, 1]], "truncated": ["bool", [-1]]},
        }
    },
}


def rerank(signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Counts the words of the query in the text, less one; "nan" has no score. Tokens are words."""
    if signature == "tokenize":
        texts = [text.decode() for text in inputs["text"]]
        words = [[*re.finditer(r"\S+", text)] for text in texts]
        values = np.full([3, len(texts), max(map(len, words))], -1, np.int32)
        for row, matches in enumerate(words):
            for column, match in enumerate(matches):
                values[:, row, column] = [len(match[0]), *match.span()]
        return dict(zip(("ids", "starts", "stops"), values, strict=True))
    rows = [
        (q.split(), t.split()) for q, t in zip(inputs["text"], inputs["text_pair"], strict=True)
    ]
    scores = [np.nan if b"nan" in t else sum(word in q for word in t) - 1 for q, t in rows]
    return {
        "logits": np.array(scores, np.float32)[:, np.newaxis],
        "truncated": np.array([len(q) + len(t) > 9 for q, t in rows]),
    }


class FakeVersion:
    """A version of a model that Python functions compute; the server's Version and Versions."""

    number = 1
    created = 1_700_000_000
    signature_def: Mapping[str, Any] = {}

    def __init__(self, run=classify, export: Mapping[str, Any] = CLASSIFIER):
        self.run, self.export = run, export
        self.signatures = export["signatures"] | (TOKENIZE_SIGNATURE if run is rerank else {})
        self.current = self

    def states(self) -> dict:
        return {1: ("AVAILABLE", "")}

    def refresh(self) -> bool:
        return False


class Server(NamedTuple):
    """A running server."""

    url: str
    stop: Callable[[], None]

    @property
    def predict(self) -> str:
        return f"{self.url}/v1/models/model:predict"

    def ask(self, body: Any, path: str = ":predict") -> tuple[int, dict]:
        """Posts an object or bytes; returns the status and the response."""
        data = json.dumps(body) if isinstance(body, dict) else body
        response = requests.post(f"{self.url}/v1/models/model{path}", data=data, timeout=30)
        return response.status_code, response.json()

    def metric(self, line: str) -> float:
        """Reads a value from the Prometheus metrics."""
        page = requests.get(f"{self.url}/metrics", timeout=30).text
        return float(re.search(f"^keras_bert_{re.escape(line)} (.*)", page, re.MULTILINE)[1])

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """Opens a connection, optionally with a small receive buffer."""
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(20)
        host, port = self.url.removeprefix("http://").split(":")
        client.connect((host, int(port)))
        return client

    def send(self, client: socket.socket, body: bytes, length: int | None = None) -> None:
        """Sends a request or its first part."""
        head = "POST /v1/models/model:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        client.sendall(f"{head}{len(body) if length is None else length}\r\n\r\n".encode() + body)


@pytest.fixture(scope="session")
def serve_here():
    """Returns a function that serves a `FakeVersion`, or several by name, from a thread."""
    from keras_bert.server.app import serve
    from keras_bert.server.settings import Settings

    stops, threads = [], []

    def start(versions: FakeVersion | Mapping[str, Any], **settings: Any) -> Server:
        models = versions if isinstance(versions, Mapping) else {"model": versions}
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        listens = threading.Event()

        def ready(stop) -> None:
            loop = asyncio.get_running_loop()
            stops.append(lambda: loop.is_closed() or loop.call_soon_threadsafe(stop))
            listens.set()

        coroutine = serve(Settings(**settings), bound, models, ready)
        threads.append(threading.Thread(target=lambda: asyncio.run(coroutine)))
        threads[-1].start()
        assert listens.wait(10)
        return Server("http://{}:{}".format(*bound.getsockname()), stops[-1])

    yield start
    for stop in stops:
        stop()
    for thread in threads:
        thread.join(10)


@pytest.fixture(scope="session")
def server(serve_here) -> Server:
    """Serves the fake model with short limits."""
    return serve_here(FakeVersion(), request_timeout_s=1.5, max_request_bytes=2_000_000)


@pytest.fixture(scope="session")
def save_model():
    """Returns a function that writes a SavedModel that outputs its version, and rejects "boom"."""
    import tensorflow as tf

    from keras_bert.export.saved_model import describe

    def save(path: Path, number: int = 1) -> Path:
        module = tf.Module()
        module.number = tf.Variable(number)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def classify(text: tf.Tensor) -> dict[str, tf.Tensor]:
            accepted = tf.reduce_all(text != "boom")
            with tf.control_dependencies([tf.debugging.Assert(accepted, ["a boom"])]):
                return {"label": text, "version": tf.fill(tf.shape(text), module.number)}

        tf.saved_model.save(module, str(path), {"serving_default": classify})
        signatures = describe({"serving_default": classify.get_concrete_function()})
        info = {"task": "classification", "format": "saved_model", "signatures": signatures}
        (path / "export.json").write_text(json.dumps(info))
        return path

    return save


@pytest.fixture(scope="session")
def wait_for():
    """Returns a function that waits until a condition holds."""

    def wait(holds, seconds: float = 10.0) -> None:
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, "the condition was not met in time"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="module")
def browser():
    """Returns Chromium."""
    # .ci/run installs both and sets this variable, so that these tests fail there, not skip.
    needed = "KERAS_BERT_NEEDS_CHROMIUM" in os.environ
    if not needed:
        pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        (pytest.fail if needed else pytest.skip)("/usr/bin/chromium is not installed")
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def send(page, **texts: str) -> None:
    """Types texts into fields, sends the form and waits for the response."""
    for name, text in texts.items():
        page.fill(f"#{name}", text)
    page.click("#send")
    page.wait_for_selector("#send:not([aria-disabled])")


def rows_of(page) -> list[str]:
    """Returns the visible rows of bars, as texts."""
    rows = page.locator(".bars li:visible").all_inner_texts()
    return [" ".join(text.split()) for text in rows]


@pytest.fixture
def visit(browser, serve_here):
    """Returns a function: (export.json, answers or a function of the texts) -> page of a server.

    Answers are {output: value of the first row}; the function takes the inputs as strings. At the
    end of a test, its page may have no errors and must fit on a phone.
    """
    pages, stops = [], []

    def visit(info: Mapping[str, Any], answers={}, inputs=("text",), scheme: str = "light"):  # noqa: B006
        def run(signature: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            texts = [[text.decode() for text in arrays[name]] for name in inputs]
            rows = [
                answers(*row) if callable(answers) else answers for row in zip(*texts, strict=True)
            ]
            return {name: _array([row[name] for row in rows]) for name in rows[0]}

        specs = {"inputs": {name: ["string", [-1]] for name in inputs}, "outputs": {}}
        version = FakeVersion(run, {"signatures": {"serving_default": specs}, **info})
        server = serve_here({"my model": version})
        stops.append(server.stop)
        page = browser.new_page(
            viewport={"width": 900, "height": 900}, color_scheme=scheme, base_url=server.url
        )
        page.console_messages, page.posts = [], []
        page.on("request", lambda sent: sent.method == "POST" and page.posts.append(sent.post_data))
        page.on("console", lambda message: page.console_messages.append(message.text))
        page.on("pageerror", lambda error: page.console_messages.append(str(error)))
        page.goto("/")
        page.locator("h1", has_not_text="Loading the model").wait_for()
        pages.append(page)
        return page

    yield visit
    for page, stop in zip(pages, stops, strict=True):
        assert not page.console_messages
        for width in (375, 1280):  # A phone and a desktop.
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()
        stop()


def _array(values: list) -> np.ndarray:
    array = np.array(values)
    if array.dtype.kind != "U":
        return array
    encoded = np.empty(array.size, object)
    encoded[:] = [text.encode() for text in array.flat]
    return encoded.reshape(array.shape)
