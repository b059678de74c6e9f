"""Answers HTTP requests as TensorFlow Serving does, serves the demo page, and starts the server.

TensorFlow Serving's routes are POST /v1/models/NAME[/versions/V]:predict and GET
/v1/models/NAME[/versions/V][/metadata]. GET /v1/models and POST /v1/embeddings are OpenAI's, POST
/rerank and /tokenize those of text-embeddings-inference, and POST /v1/rerank and /v2/rerank
Cohere's. The other routes are GET /, /export.json, /openapi.json, /healthz and /metrics.
"""

import asyncio
import contextlib
import gc
import hmac
import ipaddress
import itertools
import logging as std_logging
import os
import re
import resource
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from aiohttp import ClientPayloadError, web
from yarl import URL

from keras_bert.errors import InputError, shorten
from keras_bert.server import protocol
from keras_bert.server.api_formats import FORMATS, encode_error, supporting_models
from keras_bert.server.batching import Batcher
from keras_bert.server.metrics import CONTENT_TYPE, Metrics
from keras_bert.server.protocol import Call, RestError
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Version, Versions, collect_garbage, poll_versions

_MAX_INLINE_BYTES = 1 << 14  # maximum size of JSON that the event loop itself handles
_JSON_THREADS = 2
_MAX_MESSAGE = 1000  # maximum number of characters of an error message
_CLIENT_CLOSED_REQUEST = 499  # in the metrics only
_TRUNCATED_ROWS = "X-Truncated-Rows"  # the header with the number of truncated texts
_ENCODINGS = ("", "identity", "gzip", "deflate")
_PAGE_FOLDER = Path(__file__).parent / "page"
_PAGE_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class App:
    """Handles the requests of the server.

    Error responses are {"error": message}, or have the format of the API that the route is from.

    `models` has the versions of each model by its name; they must have loaded one.

    Attributes:
        draining: whether new requests are rejected.
        busy: the connections (aiohttp's protocols) whose request is not yet answered.
    """

    def __init__(self, settings: Settings, models: Mapping[str, Versions], metrics: Metrics):
        self.draining = False
        self.busy: set[asyncio.Protocol] = set()
        self._settings = settings
        self._models = models
        self._metrics = metrics
        self._batcher = Batcher(settings, metrics)
        self._memory = MemoryLimit(settings.max_waiting_bytes)
        self._threads = ThreadPoolExecutor(_JSON_THREADS, "json")
        self._page = {path.name: path.read_bytes() for path in _PAGE_FOLDER.iterdir()}

    def close(self) -> None:
        """Shuts down the threads, after the batches and conversions that are running."""
        self._batcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def application(self) -> web.Application:
        """Returns the web application; the metrics use the names of the handlers, `on_ROUTE`."""
        app = web.Application(middlewares=[self._observe])
        files = "|".join(map(re.escape, self._page))
        app.router.add_get(f"/{{file:|{files}}}", self.on_page)
        app.router.add_get("/export.json", self.on_export)
        app.router.add_get("/openapi.json", self.on_openapi)
        app.router.add_get("/healthz", self.on_health)
        app.router.add_get("/metrics", self.on_metrics)
        app.router.add_get("/v1/models", self.on_models)
        app.router.add_post("/v1/embeddings", self.on_embeddings)
        app.router.add_post("/rerank", self.on_rerank)
        app.router.add_post("/v1/rerank", self.on_rerank_documents)
        app.router.add_post("/v2/rerank", self.on_rerank_documents)
        app.router.add_post("/tokenize", self.on_tokenize)
        model = "/v1/models/{name:[^/:]+}"
        for path in (model, model + "/versions/{version:[0-9]{1,19}}"):
            app.router.add_post(f"{path}:predict", self.on_predict)
            app.router.add_get(f"{path}/metadata", self.on_metadata)
            app.router.add_get(path, self.on_status)
        return app

    # --- Every request ---

    @web.middleware
    async def _observe(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts and times a request, converts errors to responses, and writes the response."""
        started = time.perf_counter()
        route = "other"
        if request.match_info.http_exception is None:
            route = request.match_info.handler.__name__.removeprefix("on_")
        self.busy.add(request.protocol)
        self._metrics.in_flight.set(len(self.busy))
        try:
            with self._memory.hold() as request["set_size"]:
                status = _CLIENT_CLOSED_REQUEST  # Unless there is a response.
                try:
                    response = await self._handle_errors(request, handler, route)
                    status = response.status
                finally:
                    self._metrics.requests.labels(route, status).inc()
                self._metrics.seconds.labels(route).observe(time.perf_counter() - started)
                if self.draining:
                    response.force_close()
                await self._write(request, response)
        finally:
            self.busy.discard(request.protocol)
            self._metrics.in_flight.set(len(self.busy))
        return response

    async def _handle_errors(
        self, request: web.Request, handler: Handler, route: str
    ) -> web.StreamResponse:
        headers = {}
        try:
            check_origin(request, self._settings.allowed_hosts)
            if self._settings.api_keys and route not in ("health", "page"):
                check_key(request, self._settings.api_keys)
            if self.draining and route not in ("health", "metrics"):
                raise RestError("The server is shutting down", 503)
            if len(self.busy) > self._settings.max_in_flight:
                raise RestError("The server is overloaded: too many requests in progress", 503)
            return await handler(request)
        except RestError as error:
            status, message = error.status, error.message
        except web.HTTPException as error:
            status, message = error.status, f"{error.text} ({request.method} {request.path})"
            headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        except Exception:
            logging.exception("%s %s: internal server error", request.method, request.path)
            status = 500
            message = "Internal server error; the log of the server has the details"
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        if status == 503:
            headers["Retry-After"] = "1"
        error = encode_error(route, status, shorten(message, _MAX_MESSAGE))
        response = web.json_response(error, status=status, headers=headers)
        if status in (408, 413):
            response.force_close()
        return response

    async def _write(self, request: web.Request, response: web.StreamResponse) -> None:
        """Writes a response, and waits until the operating system has taken all of it."""
        transport = request.transport
        if transport is None:  # The client is gone.
            return
        transport.set_write_buffer_limits(0)  # Makes write_eof wait for the operating system.
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            logging.warning(
                "Closing the connection to %s: the response was not read within %g seconds",
                request.remote,
                self._settings.request_timeout_s,
            )
            transport.abort()
        except ConnectionError:
            pass  # The client is gone, which aiohttp handles.

    # --- Requests to the model ---

    async def on_predict(self, request: web.Request) -> web.Response:
        """Runs a signature."""
        version = self._version(request)
        return await self._answer(
            request, lambda body: (version, protocol.decode_call(body, version.export))
        )

    async def on_embeddings(self, request: web.Request) -> web.Response:
        """Returns vectors in OpenAI's format."""
        return await self._answer_in_format(request, "/v1/embeddings")

    async def on_rerank(self, request: web.Request) -> web.Response:
        """Ranks texts in the format of text-embeddings-inference."""
        return await self._answer_in_format(request, "/rerank")

    async def on_rerank_documents(self, request: web.Request) -> web.Response:
        """Ranks texts in the format of Cohere and Jina."""
        return await self._answer_in_format(request, "/v1/rerank")

    async def on_tokenize(self, request: web.Request) -> web.Response:
        """Splits texts into tokens in the format of text-embeddings-inference."""
        return await self._answer_in_format(request, "/tokenize")

    async def on_models(self, _: web.Request) -> web.Response:
        """Lists the models in OpenAI's format, with their tasks and served versions."""
        models = [
            {
                "id": name,
                "object": "model",
                "created": versions.current.created,
                "owned_by": "keras_bert",
                "task": versions.current.export["task"],
                "version": versions.current.number,
            }
            for name, versions in self._models.items()
        ]
        return web.json_response({"object": "list", "data": models})

    async def on_metadata(self, request: web.Request) -> web.Response:
        """Returns the signatures as TensorFlow Serving does."""
        version = self._version(request)
        name, _ = _requested(request)
        spec = {"name": name, "signature_name": "", "version": str(version.number)}
        definitions = {"signature_def": {"signature_def": version.signature_def}}
        return web.json_response({"model_spec": spec, "metadata": definitions})

    async def on_status(self, request: web.Request) -> web.Response:
        """Lists all known versions, or one, with their states."""
        name, number = _requested(request)
        states = self._models[name].states() if name in self._models else {}
        statuses = [
            {
                "version": str(version),
                "state": state,
                "status": {"error_code": "UNKNOWN" if error else "OK", "error_message": error},
            }
            for version, (state, error) in states.items()
            if number in (None, version)
        ]
        if not statuses:
            which = "any versions" if number is None else f"version {number}"
            raise RestError(f"Could not find {which} of model {name}", 404)
        return web.json_response({"model_version_status": statuses})

    def _version(self, request: web.Request) -> Version:
        """Returns the served version of the requested model if the request is for it."""
        name, number = _requested(request)
        version = self._models[name].current if name in self._models else None
        if version is None or number not in (None, version.number):
            requested = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RestError(f"Servable not found for request: {requested}", 404)
        return version

    def _served(self) -> dict[str, Version]:
        return {name: versions.current for name, versions in self._models.items()}

    async def _answer_in_format(self, request: web.Request, path: str) -> web.Response:
        """Answers a request in the format of another API, that of a path in FORMATS."""
        served, (decode_call, describe, problem) = self._served(), FORMATS[path]
        models = supporting_models(describe, served)
        if not models:
            raise RestError(f"The served version {problem}", 404)

        def decode(body: bytes) -> tuple[Version, Call]:
            name, call = decode_call(body, models)
            return served[name], call

        return await self._answer(request, decode)

    async def _answer(
        self, request: web.Request, decode: Callable[[bytes], tuple[Version, Call]]
    ) -> web.Response:
        """Answers a request; `decode` converts its body to a call of a version."""
        body = await self._read_body(request)

        def decode_and_check() -> tuple[Version, Call]:
            version, call = decode(body)
            self._batcher.check(version, call.signature, call.inputs)
            return version, call

        is_cancelled = threading.Event()
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                version, call = await self._run_large_in_thread(len(body), decode_and_check)
                outputs = await self._batcher.run(
                    version, call.signature, call.inputs, request["set_size"]
                )
                parts = itertools.takewhile(
                    lambda _: not is_cancelled.is_set(), call.encode(outputs)
                )
                size = 8 * sum(array.size for array in outputs.values())
                text = await self._run_large_in_thread(size, partial(b"".join, parts))
        except TimeoutError:
            seconds = f"{self._settings.request_timeout_s:g} seconds"
            raise RestError(f"The model did not respond within {seconds}", 504) from None
        finally:
            is_cancelled.set()
        request["set_size"](len(text))
        headers = {}
        if protocol.TRUNCATED in outputs:
            headers[_TRUNCATED_ROWS] = str(np.count_nonzero(outputs[protocol.TRUNCATED]))
        return web.Response(body=text, content_type="application/json", headers=headers)

    async def _read_body(self, request: web.Request) -> bytes:
        """Returns the body, which aiohttp decompresses as it arrives."""
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise RestError(f"Content-Encoding: {encoding}; expected gzip, deflate or none", 415)
        limit, seconds = self._settings.max_request_bytes, self._settings.request_timeout_s
        size, body = request.content_length or 0, bytearray()
        try:
            async with asyncio.timeout(seconds):
                while size <= limit and (part := await request.content.readany()):
                    body += part
                    size = max(size, len(body))
                    # Only what has arrived counts, so that slow clients do not block others.
                    request["set_size"](len(body))
        except TimeoutError:
            raise RestError(
                f"The request body did not arrive within {seconds:g} seconds", 408
            ) from None
        except (ClientPayloadError, web.RequestPayloadError, ConnectionError) as error:
            # The body is incomplete or does not match its headers; the client may be gone.
            raise RestError(f"The request body is incomplete or invalid: {error}") from None
        if size > limit:
            raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=size)
        return bytes(body)

    async def _run_large_in_thread(self, size: int, function: Callable[[], Any]) -> Any:
        if size <= _MAX_INLINE_BYTES:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    # --- Other routes ---

    async def on_page(self, request: web.Request) -> web.Response:
        """Returns a file of the demo page."""
        name = request.match_info["file"] or "index.html"
        return web.Response(
            body=self._page[name],
            content_type=_PAGE_TYPES[Path(name).suffix],
            charset="utf-8",
            headers=_PAGE_HEADERS,
        )

    async def on_export(self, request: web.Request) -> web.Response:
        """Returns the export.json of a served version, with its number and the model's name."""
        name = request.query.get("model", next(iter(self._models)))
        if name not in self._models:
            raise RestError(
                f"model: {name} does not exist; expected {', '.join(self._models)}", 404
            )
        version = self._models[name].current
        served = {"model_name": name, "model_version": version.number}
        return web.json_response(version.export | served)

    async def on_openapi(self, _: web.Request) -> web.Response:
        """Returns the OpenAPI document."""
        served = self._served()
        exports = {name: version.export for name, version in served.items()}
        formats = {
            path: supporting_models(describe, served) for path, (_, describe, _) in FORMATS.items()
        }
        has_keys = bool(self._settings.api_keys)
        return web.json_response(protocol.describe_routes(exports, formats, has_keys))

    async def on_health(self, _: web.Request) -> web.Response:
        """Returns whether the server accepts requests."""
        if self.draining:
            raise RestError("The server is shutting down", 503)
        version = next(iter(self._models.values())).current
        return web.json_response({"status": "ok", "version": str(version.number)})

    async def on_metrics(self, _: web.Request) -> web.Response:
        """Returns the metrics in Prometheus's format."""
        for name, versions in self._models.items():
            self._metrics.version.labels(name).set(versions.current.number)
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})


class MemoryLimit:
    """Counts the bytes of the bodies and answers that all requests hold, up to `max_bytes`.

    A single larger value is allowed if it is the only one.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._total = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that sets the number of bytes that a request holds, at first 0.

        The bytes count while the context is open.
        """
        held = 0

        def set_size(size: int) -> None:
            nonlocal held
            rest = self._total - held
            if rest and rest + size > self._max_bytes:
                raise RestError(
                    "The server is overloaded: the requests in progress and their answers exceed "
                    f"the limit of {self._max_bytes} bytes; try again later",
                    503,
                )
            held, self._total = size, rest + size

        try:
            yield set_size
        finally:
            self._total -= held


def _requested(request: web.Request) -> tuple[str, int | None]:
    """Returns the name of the model in the path, and the version number, None for the latest."""
    version = request.match_info.get("version")
    return request.match_info["name"], None if version is None else int(version)


def check_key(request: web.Request, keys: Sequence[bytes]) -> None:
    """Rejects a request without one of the keys as its bearer token, in constant time.

    The message contains nothing of the token.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    # Digests have equal lengths, so that the time does not depend on those of the keys. A sum,
    # because `any` would stop at the key that is equal.
    digest = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
    count = sum(hmac.compare_digest(digest, sha256(key).digest()) for key in keys)
    if scheme.lower() != "bearer" or not count:
        problem = "a key that the server does not have" if scheme else "missing"
        raise RestError(
            f"Authorization: {problem}; expected `Bearer KEY` with a key of the server", 401
        )


def check_origin(request: web.Request, allowed_hosts: Collection[str]) -> None:
    """Rejects requests that a web page of another site makes through the user's browser.

    A page can send requests to a server on the user's own machine in two ways: its domain name
    resolves to 127.0.0.1 (DNS rebinding), which the Host header shows, or it sends a form or plain
    text, for which the browser does not ask the server first (no CORS preflight request).

    A name in the Host header must be in `allowed_hosts`, unless `allowed_hosts` contains "*". IP
    addresses, `localhost` and `*.localhost` are always allowed, because no other site can have
    these names.
    """
    header = request.headers.get("Host", "")
    if "*" not in allowed_hosts and not _is_allowed(header, allowed_hosts):
        raise RestError(
            f"The Host header is {header!r:.200}; expected an IP address, localhost, or a name in "
            "the server's --allowed_hosts",
            403,
        )
    origin = request.headers.get("Origin")
    is_same = origin is None or origin.partition("://")[2] == header
    if not is_same and request.method == "POST" and request.content_type != "application/json":
        raise RestError(
            f"The request comes from the site {origin!r:.200} with Content-Type: "
            f"{request.content_type!r:.200}; expected application/json",
            415,
        )


def _is_allowed(header: str, allowed_hosts: Collection[str]) -> bool:
    """Returns whether the host in a Host header, without the port, is local or in a list."""
    try:
        host = (URL.build(scheme="http", authority=header).host or "").removesuffix(".")
        if host in allowed_hosts or host == "localhost" or host.endswith(".localhost"):
            return True
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


# --- the server ---

_BACKLOG = 1024
_ACCEPTS = 4  # connections that are accepted before the event loop closes others to make room
_RESERVED_FILES = 24  # for these connections, loading versions, and temporary use
# Seconds after which a thread that converts JSON lets the event loop run. With Python's default of
# 0.005, a short request can take 0.1 seconds while such a thread runs.
_SWITCH_INTERVAL = 0.0005
# Python's default of 700 would start many collections while a large body is parsed.
_OBJECTS_PER_COLLECTION = 100_000
_LINGER = 2.0  # seconds to read the rest of a rejected body
_SETTLE = 0.1  # seconds to read requests that have already arrived


async def serve(
    settings: Settings,
    bound: socket.socket,
    models: Mapping[str, Versions],
    ready: Callable[[Callable[[], None]], None],
) -> None:
    """Serves on a bound socket until it is stopped; then answers the open requests and returns.

    `models` has the versions of each model by its name; they must have loaded one. When the server
    listens, `ready` is called with a function that stops the server.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL)
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    collect_garbage()
    # Each connection is an open file.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    free_files = most_files - len(os.listdir("/proc/self/fd")) - _RESERVED_FILES
    limit = min(settings.max_in_flight, max(free_files, _ACCEPTS))
    # aiohttp would log a traceback for each request that is not valid HTTP.
    std_logging.getLogger("aiohttp.server").setLevel(std_logging.CRITICAL)
    metrics = Metrics()
    app = App(settings, models, metrics)
    runner = web.AppRunner(
        app.application(),
        access_log=None,
        handler_cancellation=True,  # A request ends when its client disconnects.
        # Also the time within which a new connection must send its first request's headers.
        keepalive_timeout=settings.request_timeout_s,
        lingering_time=_LINGER,
        shutdown_timeout=settings.drain_timeout_s,
    )
    await runner.setup()

    def accept() -> asyncio.Protocol:
        """Creates the handler of a connection; above the limit, closes the oldest idle one."""
        connections = [each for each in runner.server.connections if each.transport]
        idle = [each for each in connections if each not in app.busy]
        if len(connections) >= limit and idle:
            idle[0].force_close()
        return runner.server()

    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(accept, sock=bound, backlog=_ACCEPTS)
        bound.listen(_BACKLOG)  # The operating system's queue may be longer.
    except OSError as error:  # Another server that was started at the same time listens.
        raise InputError(f"cannot listen on the port: {error.strerror}") from None
    stop_requested = asyncio.Event()
    background = [
        loop.create_task(poll_versions(models.values(), settings.poll_interval_s)),
        loop.create_task(metrics.observe_loop_lag()),
    ]
    ready(stop_requested.set)
    await stop_requested.wait()
    app.draining = True
    for task in background:
        task.cancel()
    server.close()
    await asyncio.sleep(_SETTLE)
    if app.busy:
        logging.info(
            "Shutting down; waiting up to %g seconds for %d requests in flight",
            settings.drain_timeout_s,
            len(app.busy),
        )
    await runner.cleanup()  # Closes idle connections, and the others after their response.
    app.close()
