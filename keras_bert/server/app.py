"""Answers HTTP requests as TensorFlow Serving does, and serves the demo page.

TensorFlow Serving's routes are POST /v1/models/NAME[/versions/V]:predict and GET
/v1/models/NAME[/versions/V][/metadata]. POST /v1/embeddings is OpenAI's. The other routes are
GET /, /export.json, /openapi.json, /healthz and /metrics.
"""

import asyncio
import contextlib
import ipaddress
import itertools
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from absl import logging
from aiohttp import ClientPayloadError, web

from keras_bert.errors import shorten
from keras_bert.export.model_card import public_name
from keras_bert.export.version_folders import version_number
from keras_bert.server import protocol
from keras_bert.server.batching import Batcher
from keras_bert.server.metrics import CONTENT_TYPE, Metrics
from keras_bert.server.protocol import RestError
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Version, Versions

_MAX_INLINE_BYTES = 1 << 14  # maximum size of JSON that the event loop itself handles
_JSON_THREADS = 2
_MAX_MESSAGE = 1000  # maximum number of characters of an error message
_CLIENT_CLOSED_REQUEST = 499  # in the metrics only
_ENCODINGS = ("", "identity", "gzip", "deflate")
_MODEL_PATH = re.compile(
    r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(:predict|/metadata)?",
    re.IGNORECASE | re.ASCII,
)
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

    Error responses are {"error": message}; for embeddings, {"error": {"message": message, ...}}.

    `versions` must have loaded a version.

    Attributes:
        draining: whether new requests are rejected.
        busy: the connections (aiohttp's protocols) whose request is not yet answered.
    """

    def __init__(self, settings: Settings, versions: Versions, metrics: Metrics):
        self.draining = False
        self.busy: set[asyncio.Protocol] = set()
        self._settings = settings
        self._name = settings.model_name
        self._versions = versions
        self._metrics = metrics
        self._batcher = Batcher(settings, metrics)
        self._bodies = MemoryLimit(
            settings.max_waiting_bytes, "the bodies of the waiting requests exceed"
        )
        self._answers = MemoryLimit(
            settings.max_waiting_bytes, "the answers that are not yet sent exceed"
        )
        self._threads = ThreadPoolExecutor(_JSON_THREADS, "json")
        self._page = {path.name: path.read_bytes() for path in _PAGE_FOLDER.iterdir()}

    def close(self) -> None:
        """Shuts down the threads, after the batches and conversions that are running."""
        self._batcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def application(self) -> web.Application:
        """Returns the web application with all routes; the metrics use the names."""
        app = web.Application(middlewares=[self._observe])
        files = "|".join(map(re.escape, self._page))
        app.router.add_get(f"/{{file:|{files}}}", self._show_page, name="page")
        app.router.add_get("/export.json", self._show_export, name="export")
        app.router.add_get("/openapi.json", self._show_openapi)
        app.router.add_get("/healthz", self._show_health, name="health")
        app.router.add_get("/metrics", self._show_metrics, name="metrics")
        app.router.add_route("*", "/v1/embeddings", self._embed, name="embeddings")
        app.router.add_route("*", "/v1/{rest:.*}", self._handle_model)
        return app

    # --- Every request ---

    @web.middleware
    async def _observe(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts and times a request, converts errors to responses, and writes the response."""
        started = time.perf_counter()
        route = _route_name(request)
        self.busy.add(request.protocol)
        self._metrics.in_flight.set(len(self.busy))
        try:
            with self._answers.hold() as request["set_answer_size"]:
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
            if self.draining and route not in ("health", "metrics"):
                raise RestError("The server is shutting down", 503)
            if len(self.busy) > self._settings.max_connections:
                raise RestError("The server is overloaded: all connections are in use", 503)
            return await handler(request)
        except RestError as error:
            status, message = error.status, error.message
        except web.HTTPException as error:
            status, message = error.status, f"{error.reason}: {request.method} {request.path}"
            headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
        except Exception:
            logging.exception("%s %s: internal server error", request.method, request.path)
            status = 500
            message = "Internal server error; the log of the server has the details"
        error = message = shorten(message, _MAX_MESSAGE)
        if route == "embeddings":
            kind = "invalid_request_error" if status < 500 else "server_error"
            code = "model_not_found" if status == 404 else None
            error = {"message": message, "type": kind, "param": None, "code": code}
        response = json_response({"error": error}, status)
        response.headers.update(headers)
        if status in (408, 413):
            response.force_close()
        if status == 503:
            response.headers["Retry-After"] = "1"
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

    async def _handle_model(self, request: web.Request) -> web.Response:
        path = request.rel_url.raw_path
        match = _MODEL_PATH.fullmatch(path)
        action = match and (match[4] or "").lower()
        if match is None or request.method not in (
            ("POST",) if action == ":predict" else ("GET", "HEAD")
        ):
            raise RestError(f"Malformed request: {request.method} {path}")
        name, number = unquote(match[1]), version_number(match[2] or "")
        if match[3]:
            raise RestError(f"Unrecognized servable version label: {unquote(match[3])}")
        if match[2] and number is None:
            raise RestError(f"Failed to convert version: {match[2]} to numeric.")
        if not action:
            return self._status(name, number)
        version = self._versions.current
        if name != self._name or number not in (None, version.number):
            requested = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RestError(f"Servable not found for request: {requested}", 404)
        if action == "/metadata":
            spec = {"name": name, "signature_name": "", "version": str(version.number)}
            definitions = {"signature_def": {"signature_def": version.signature_def}}
            return json_response({"model_spec": spec, "metadata": definitions})
        decode = partial(protocol.decode_call, signatures=version.signatures)
        return await self._answer(request, version, decode, protocol.encode_call)

    async def _embed(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            raise RestError(f"Malformed request: {request.method} {request.path}")
        version = self._versions.current
        model = protocol.embedding_model(version.export)
        if model is None:
            raise RestError(
                "The served version returns no embeddings with token counts; expected the export "
                "of a TextEmbedder of this version of keras_bert",
                404,
            )
        decode = partial(protocol.decode_embedding_call, model=model, name=self._name)
        encode = partial(protocol.encode_embeddings, model=model, name=self._name)
        return await self._answer(request, version, decode, encode)

    async def _answer(
        self, request: web.Request, version: Version, decode: Callable, encode: Callable
    ) -> web.Response:
        """Answers a request; bodies are converted by `decode`, outputs by `encode`."""
        self._batcher.require_room()
        request["set_answer_size"](1)  # Fails if there is no room for any answer.

        def decode_and_check(body: bytes) -> Any:
            call = decode(body)
            self._batcher.check(version, call.signature, call.inputs)
            return call

        with self._bodies.hold() as set_body_size:
            body = await self._read_body(request, set_body_size)
            is_cancelled = threading.Event()
            try:
                async with asyncio.timeout(self._settings.request_timeout_s):
                    call = await self._run_large_in_thread(len(body), decode_and_check, body)
                    outputs = await self._batcher.run(
                        version, call.signature, call.inputs, request["set_answer_size"]
                    )
                    parts = itertools.takewhile(
                        lambda _: not is_cancelled.is_set(), encode(call, outputs)
                    )
                    size = 8 * sum(array.size for array in outputs.values())
                    text = await self._run_large_in_thread(size, b"".join, parts)
                    request["set_answer_size"](len(text))
                    return json_response(text)
            except TimeoutError:
                seconds = f"{self._settings.request_timeout_s:g} seconds"
                raise RestError(f"The model did not respond within {seconds}", 504) from None
            finally:
                is_cancelled.set()

    async def _read_body(self, request: web.Request, set_size: Callable[[int], None]) -> bytes:
        """Returns the body, which aiohttp decompresses as it arrives.

        Raises:
            RestError: the body is too large, late, incomplete or in an unknown encoding, or the
                total size of all bodies is too large.
        """
        encoding = request.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in _ENCODINGS:
            raise RestError(f"Content-Encoding: {encoding}; expected gzip, deflate or none", 415)
        limit, seconds = self._settings.max_request_bytes, self._settings.request_timeout_s
        too_large = RestError(f"The request body is larger than the limit of {limit} bytes", 413)
        if (request.content_length or 0) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.content.iter_any():
                    body += chunk
                    if len(body) > limit:
                        raise too_large
                    set_size(len(body))
        except TimeoutError:
            raise RestError(
                f"The request body did not arrive within {seconds:g} seconds", 408
            ) from None
        except (ClientPayloadError, web.RequestPayloadError, ConnectionError) as error:
            # The body is incomplete or does not match its headers; the client may be gone.
            raise RestError(f"The request body is incomplete or invalid: {error}") from None
        return bytes(body)

    async def _run_large_in_thread(self, size: int, function: Callable, *arguments: Any) -> Any:
        if size <= _MAX_INLINE_BYTES:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    def _status(self, name: str, number: int | None) -> web.Response:
        states = self._versions.states() if name == self._name else {}
        if number is not None:
            states = {number: states[number]} if number in states else {}
        if not states:
            which = "any versions" if number is None else f"version {number}"
            raise RestError(f"Could not find {which} of model {name}", 404)
        statuses = [
            {
                "version": str(version),
                "state": state,
                "status": {"error_code": "UNKNOWN" if error else "OK", "error_message": error},
            }
            for version, (state, error) in states.items()
        ]
        return json_response({"model_version_status": statuses})

    # --- Other routes ---

    async def _show_page(self, request: web.Request) -> web.Response:
        name = request.match_info["file"] or "index.html"
        return web.Response(
            body=self._page[name],
            content_type=_PAGE_TYPES[Path(name).suffix],
            charset="utf-8",
            headers=_PAGE_HEADERS,
        )

    async def _show_export(self, _: web.Request) -> web.Response:
        version = self._versions.current
        if version.export is None:
            raise RestError("The served version has no export.json", 404)
        served = {"model_name": self._name, "model_version": version.number}
        if isinstance(model := version.export.get("model"), str):
            served["model"] = public_name(model)  # Older exports contain the whole path.
        return json_response(version.export | served)

    async def _show_openapi(self, _: web.Request) -> web.Response:
        version = self._versions.current
        model = protocol.embedding_model(version.export)
        sizes = model.sizes if model else ()
        return json_response(protocol.describe_routes(self._name, version.signatures, sizes))

    async def _show_health(self, _: web.Request) -> web.Response:
        if self.draining:
            raise RestError("The server is shutting down", 503)
        return json_response({"status": "ok", "version": str(self._versions.current.number)})

    async def _show_metrics(self, _: web.Request) -> web.Response:
        self._metrics.version.set(self._versions.current.number)
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})


class MemoryLimit:
    """Counts the bytes that all requests hold, up to `max_bytes` in total.

    A single larger value is allowed if it is the only one. `description` is part of the error.
    """

    def __init__(self, max_bytes: int, description: str):
        self._max_bytes = max_bytes
        self._description = description
        self._total = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that sets the number of bytes that a request holds, at first 0.

        The bytes count while the context is open. The function raises a RestError with status 503
        if the total is too large.
        """
        held = 0

        def set_size(size: int) -> None:
            nonlocal held
            rest = self._total - held
            if rest and rest + size > self._max_bytes:
                raise RestError(
                    f"The server is overloaded: {self._description} the limit of "
                    f"{self._max_bytes} bytes; try again later",
                    503,
                )
            held, self._total = size, rest + size

        try:
            yield set_size
        finally:
            self._total -= held


def json_response(value: Any, status: int = 200) -> web.Response:
    """Creates a response from JSON text in bytes, or from a value, which is converted to JSON.

    Characters that UTF-8 cannot encode (a lone surrogate from a client) become "?".
    """
    if not isinstance(value, bytes):
        value = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return web.Response(body=value, status=status, content_type="application/json")


def _route_name(request: web.Request) -> str:
    """Returns the value of the label `route` in the metrics, one of a few."""
    if name := request.match_info.route.name:
        return name
    if not request.path.startswith("/v1/"):
        return "other"
    path = request.path.lower()
    if path.endswith(":predict"):
        return "predict"
    return "metadata" if path.endswith("/metadata") else "status"


def check_origin(request: web.Request, allowed_hosts: Collection[str]) -> None:
    """Rejects requests that a web page of another site makes through the user's browser.

    A page can send requests to a server on the user's own machine in two ways: its domain name
    resolves to 127.0.0.1 (DNS rebinding), which the Host header shows, or it sends a form or plain
    text, for which the browser does not ask the server first (no CORS preflight request).

    A name in the Host header must be in `allowed_hosts`, unless `allowed_hosts` contains "*".
    IP addresses, `localhost` and `*.localhost` are always allowed, because no other site can have
    these names.

    Raises:
        RestError: status 403 for a host that is not allowed; 415 for a POST request from another
            site whose content type is not JSON.
    """
    host = _host_name(request.headers.get("Host", ""))
    if host is None or not ("*" in allowed_hosts or host in allowed_hosts or _is_local(host)):
        raise RestError(
            f"The Host header is {request.headers.get('Host', '')!r:.200}; expected an IP address, "
            "localhost, or a name in the server's --allowed_hosts",
            403,
        )
    origin = request.headers.get("Origin")
    is_same = origin is None or origin.partition("://")[2] == request.headers.get("Host")
    if not is_same and request.method == "POST" and request.content_type != "application/json":
        raise RestError(
            f"The request comes from the site {origin!r:.200} with Content-Type: "
            f"{request.content_type!r:.200}; expected application/json",
            415,
        )


def _host_name(header: str) -> str | None:
    """Returns the host in a Host header, in lower case without the port; None if invalid."""
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018  Raises a ValueError if the port is invalid.
    except ValueError:
        return None
    is_host = parts.netloc == header and "@" not in header and parts.hostname
    return parts.hostname.removesuffix(".") if is_host else None


def _is_local(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
