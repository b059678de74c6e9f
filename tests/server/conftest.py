"""Fixtures: a fake model, a server of it in a process, servers in threads, and the demo page."""

import asyncio
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LABELS = ["negative", "neutral", "positive"]


class Server(NamedTuple):
    """A running server."""

    url: str
    folder: Path
    stop: Callable[[], None]
    process: subprocess.Popen | None = None
    log: str = ""

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
def save_model():
    """Returns a function that writes a SavedModel that outputs a label and its version."""
    import tensorflow as tf

    def save(path: Path, number: int = 1, export: dict | None = None) -> Path:
        module = tf.Module()
        module.number = tf.Variable(number)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def classify(text: tf.Tensor) -> dict[str, tf.Tensor]:
            rejected = tf.reduce_any(tf.strings.regex_full_match(text, "boom"))
            with tf.control_dependencies([tf.debugging.Assert(~rejected, ["a boom"])]):
                length = tf.strings.length(text, unit="UTF8_CHAR")
            # "work N" loops N times, for tests of slow responses.
            works = tf.strings.regex_full_match(text, "work [0-9]+")
            turns = tf.strings.to_number(
                tf.where(works, tf.strings.regex_replace(text, "work ", ""), "0"), tf.int32
            )
            turned = tf.while_loop(
                lambda i, x: i < tf.reduce_max(turns, keepdims=False),
                lambda i, x: (i + 1, x + tf.random.uniform([])),
                (0, 0.0),
                parallel_iterations=1,
            )[1]
            logits = tf.one_hot(length % 3, 3) + 0.0 * tf.math.minimum(turned, 1.0)
            return {
                "label": tf.gather(tf.constant(LABELS), tf.argmax(logits, -1)),
                "probabilities": tf.nn.softmax(logits),
                "version": tf.fill(tf.shape(text), module.number),
            }

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, None], tf.int32, name="input_ids"),
                tf.TensorSpec([None, None], tf.float32, name="weights"),
            ]
        )
        def ids(input_ids: tf.Tensor, weights: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"sum": tf.reduce_sum(tf.cast(input_ids, tf.float32) * weights, -1)}

        tf.saved_model.save(module, str(path), {"serving_default": classify, "token_ids": ids})
        notes = {"task": "classification", "pair": False, "labels": LABELS} | (export or {})
        (path / "export.json").write_text(json.dumps(notes))
        return path

    return save


@pytest.fixture(scope="session")
def export_dir(save_model, tmp_path_factory) -> Path:
    """Creates a folder with version 1."""
    folder = tmp_path_factory.mktemp("export")
    save_model(folder / "1")
    return folder


@pytest.fixture(scope="session")
def start_process(root):
    """Returns a function that starts the program and waits until it listens."""
    started: list[subprocess.Popen] = []

    def start(folder: Path, *flags: str, max_files: int | None = None) -> Server:
        def limit_files() -> None:
            if max_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))

        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "keras_bert", "serve", f"--export_dir={folder}"),
                "--port=0",
                *flags,
            ],
            cwd=root,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=limit_files,
        )
        started.append(process)
        output = ""
        for line in process.stderr:
            output += line
            if match := re.search(r"http://\S+", line):
                # Keep reading, so that the pipe never fills.
                threading.Thread(target=process.stderr.read, daemon=True).start()
                return Server(match[0], folder, process.terminate, process, output)
        raise AssertionError(f"the server ended: {output}")

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def server(start_process, export_dir) -> Server:
    """Starts the program with version 1 and short limits."""
    return start_process(export_dir, "--request_timeout_s=1.5", "--max_request_bytes=2000000")


@pytest.fixture
def serve_here():
    """Returns a function that serves a folder from a thread of this process."""
    from keras_bert.server.lifecycle import serve
    from keras_bert.server.settings import Settings
    from keras_bert.server.versions import Versions

    stops, threads = [], []

    def start(folder: Path, **settings: Any) -> Server:
        versions = Versions(folder)
        versions.start()
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        listens = threading.Event()

        def ready(stop) -> None:
            loop = asyncio.get_running_loop()
            stops.append(lambda: loop.is_closed() or loop.call_soon_threadsafe(stop))
            listens.set()

        coroutine = serve(Settings(**settings), bound, versions, ready)
        thread = threading.Thread(target=lambda: asyncio.run(coroutine))
        thread.start()
        threads.append(thread)
        assert listens.wait(10)
        return Server("http://{}:{}".format(*bound.getsockname()), folder, stops[-1])

    yield start
    for stop, thread in zip(stops, threads, strict=True):
        stop()
        thread.join(10)


@pytest.fixture(scope="session")
def wait_for():
    """Returns a function that waits until a condition holds."""

    def wait(holds, seconds: float = 10.0) -> None:
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, "the condition was not met in time"
            time.sleep(0.05)

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


@pytest.fixture
def open_page(browser, serve_here):
    """Returns a function: folder of versions -> page of a server of them."""
    pages = []

    def open_page(folder: Path, scheme: str = "light"):
        server = serve_here(folder, model_name="my model")
        page = browser.new_page(
            viewport={"width": 900, "height": 900}, color_scheme=scheme, base_url=server.url
        )
        page.console_messages, page.posts = [], []
        page.on("request", lambda sent: sent.method == "POST" and page.posts.append(sent.post_data))
        page.on("console", lambda message: page.console_messages.append(message.text))
        page.on("pageerror", lambda error: page.console_messages.append(str(error)))
        page.goto("/")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        assert not page.console_messages
        page.close()


@pytest.fixture
def visit(open_page, tmp_path):
    """Returns a function: (signature, export.json) -> page of a server of them."""
    import tensorflow as tf

    def save_and_open(signature, export: dict, scheme: str = "light"):
        module = tf.Module()
        tf.saved_model.save(module, str(tmp_path / "1"), {"serving_default": signature})
        (tmp_path / "1" / "export.json").write_text(json.dumps(export))
        return open_page(tmp_path, scheme)

    return save_and_open
