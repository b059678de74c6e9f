"""Answers HTTP requests as TensorFlow Serving does, and serves the demo page.

TensorFlow Serving's routes are POST /v1/models/NAME[/versions/V]:predict and GET
/v1/models/NAME[/versions/V][/metadata]. POST /v1/embeddings is OpenAI's. The other routes are
GET /, /export.json, /openapi.json, /healthz and /metrics.
"""

import asyncio
import ipaddress
import itertools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from absl import logging
from aiohttp import web

from keras_bert.export.model_card import public_name
from keras_bert.export.version_folders import version_number
from keras_bert.server import embeddings, protocol
from keras_bert.server.batching import Batcher
from keras_bert.server.bodies import Answers, Bodies, HeldAnswer
from keras_bert.server.connections import Connections
from keras_bert.server.errors import RestError
from keras_bert.server.metrics import CONTENT_TYPE, Metrics
from keras_bert.server.responses import (
    PAGE_FILES,
    Handler,
    describe_routes,
    error_response,
    json_response,
    metadata_response,
    openai_error_response,
    page_handler,
    status_response,
)
from keras_bert.server.settings import Settings
from keras_bert.server.versions import Version, Versions

_MAX_INLINE_BYTES = 1 << 14  # maximum size of JSON that the event loop itself handles
_JSON_THREADS = 2
_CLIENT_CLOSED_REQUEST = 499  # in the metrics only

_held_answer: ContextVar[HeldAnswer] = ContextVar("held_answer")  # that of the current request

_Call = protocol.Call | embeddings.EmbeddingCall
_Decode = Callable[[bytes], _Call]
_Encode = Callable[[Any, protocol.Arrays], Iterator[bytes]]
_VERSION_PATH = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
_CALL_PATH = re.compile(_VERSION_PATH + ":(classify|regress|predict)", re.IGNORECASE | re.ASCII)
_INFO_PATH = re.compile(_VERSION_PATH + "(/metadata)?", re.IGNORECASE | re.ASCII)
_EMBEDDINGS_PATH = "/v1/embeddings"


class Routes:
    """Handles the requests of the server.

    Error responses are {"error": message}; for embeddings, {"error": {"message": message, ...}}.

    `versions` must have loaded a version.

    Attributes:
        draining: whether new requests are rejected.
        in_flight: the number of requests whose answer is not yet written.
    """

    def __init__(
        self,
        settings: Settings,
        versions: Versions,
        batcher: Batcher,
        metrics: Metrics,
        connections: Connections,
    ):
        self.draining = False
        self.in_flight = 0
        self._settings = settings
        self._name = settings.model_name
        self._timeout = settings.request_timeout_s
        self._versions = versions
        self._bodies = Bodies(
            settings.max_request_bytes, settings.max_waiting_bytes, settings.request_timeout_s
        )
        self._answers = Answers(settings.max_waiting_bytes)
        self._batcher = batcher
        self._metrics = metrics
        self._connections = connections
        self._threads = ThreadPoolExecutor(_JSON_THREADS, "json")

    def close(self) -> None:
        """Shuts down the threads that convert JSON, after the conversions that are running."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def application(self) -> web.Application:
        """Returns the web application with all routes."""
        app = web.Application(middlewares=[self._observe])
        for path, name in PAGE_FILES.items():
            app.router.add_get(path, page_handler(name))
        app.router.add_get("/export.json", self._export)
        app.router.add_get("/openapi.json", self._openapi)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_route("*", "/v1/{rest:.*}", self._handle_rest)
        return app

    @web.middleware
    async def _observe(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts and times a request, converts errors to responses, and writes the response."""
        started = time.perf_counter()
        route = _route_name(request.path)
        self._change_in_flight(1)
        try:
            with self._connections.in_use(request), self._answers.hold() as held:
                _held_answer.set(held)
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
            self._change_in_flight(-1)
        return response

    def _change_in_flight(self, change: int) -> None:
        self.in_flight += change
        self._metrics.in_flight.set(self.in_flight)

    async def _write(self, request: web.Request, response: web.StreamResponse) -> None:
        """Writes a response, and waits until the operating system has taken all of it."""
        transport = request.transport
        if transport is None:  # The client is gone.
            return
        transport.set_write_buffer_limits(0)  # Makes write_eof wait for the operating system.
        try:
            async with asyncio.timeout(self._timeout):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            logging.warning(
                "Closing the connection to %s: the response was not read within %g seconds",
                request.remote,
                self._timeout,
            )
            transport.abort()
        except ConnectionError:
            pass  # The client is gone, which aiohttp handles.

    async def _handle_errors(
        self, request: web.Request, handler: Handler, route: str
    ) -> web.StreamResponse:
        failed = openai_error_response if route == "embeddings" else error_response
        try:
            check_origin(request, self._settings.allowed_hosts)
            if self.draining and route not in ("health", "metrics"):
                raise RestError(503, "The server is shutting down")
            return await handler(request)
        except RestError as error:
            return failed(error.status, error.message)
        except web.HTTPException as error:
            response = failed(error.status, f"{error.reason}: {request.method} {request.path}")
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except Exception:
            logging.exception("%s %s: internal server error", request.method, request.path)
            return failed(500, "Internal server error; the log of the server has the details")

    async def _handle_rest(self, request: web.Request) -> web.Response:
        path = request.rel_url.raw_path
        if request.method == "POST" and (match := _CALL_PATH.fullmatch(path)):
            version = self._version(match)
            method = match[4].lower()
            if method != "predict":
                kind = {"classify": "classification", "regress": "regression"}[method]
                raise RestError(
                    400,
                    f"Expected {kind} signature method_name to be tensorflow/serving/{method}. "
                    "Was: tensorflow/serving/predict",
                )
            decode = partial(
                protocol.decode_call,
                signatures=version.signatures,
                max_rows=self._settings.max_request_rows,
            )
            return await self._answer(request, version, decode, protocol.encode_call)
        if request.method == "POST" and path == _EMBEDDINGS_PATH:
            version = self._versions.current
            decode = partial(
                embeddings.decode_request,
                model=embeddings.require_model(version.export),
                name=self._name,
                max_rows=self._settings.max_request_rows,
            )
            encode = partial(embeddings.encode_response, name=self._name)
            return await self._answer(request, version, decode, encode)
        if request.method in ("GET", "HEAD") and (match := _INFO_PATH.fullmatch(path)):
            if match[4]:
                return metadata_response(self._name, self._version(match))
            return self._status(match)
        raise RestError(400, f"Malformed request: {request.method} {path}")

    def _version(self, match: re.Match) -> Version:
        name, number = unquote(match[1]), _number(match[2])
        if match[3]:
            raise RestError(400, f"Unrecognized servable version label: {unquote(match[3])}")
        current = self._versions.current
        if name == self._name and number in (None, current.number):
            return current
        requested = f"Latest({name})" if number is None else f"Specific({name}, {number})"
        raise RestError(404, f"Servable not found for request: {requested}")

    async def _answer(
        self, request: web.Request, version: Version, decode: _Decode, encode: _Encode
    ) -> web.Response:
        self._batcher.require_room()
        self._answers.require_room()
        async with self._bodies.read(request, self._connections.arrival(request)) as body:
            try:
                async with asyncio.timeout(self._timeout):
                    call = await self._run_large_in_thread(len(body), decode, body)
                    held = _held_answer.get()
                    outputs = await self._batcher.run(version, call.signature, call.inputs, held)
                    text = await self._encode(outputs, encode(call, outputs))
                    held.set_size(len(text))
                    return json_response(text)
            except TimeoutError:
                raise RestError(
                    504, f"The model did not respond within {self._timeout:g} seconds"
                ) from None

    async def _encode(self, outputs: protocol.Arrays, parts: Iterator[bytes]) -> bytes:
        is_cancelled = threading.Event()
        size = 8 * sum(array.size for array in outputs.values())
        try:
            return await self._run_large_in_thread(size, _join_parts, parts, is_cancelled)
        finally:
            is_cancelled.set()

    async def _run_large_in_thread(self, size: int, function: Callable, *arguments: Any) -> Any:
        if size <= _MAX_INLINE_BYTES:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *arguments)

    def _status(self, match: re.Match) -> web.Response:
        name, number = unquote(match[1]), _number(match[2])
        if match[3]:
            raise RestError(400, f"Unrecognized servable version label: {unquote(match[3])}")
        states = self._versions.states() if name == self._name else {}
        if number is not None:
            if number not in states:
                raise RestError(404, f"Could not find version {number} of model {name}")
            states = {number: states[number]}
        if not states:
            raise RestError(404, f"Could not find any versions of model {name}")
        return status_response(states)

    async def _export(self, _: web.Request) -> web.Response:
        version = self._versions.current
        if version.export is None:
            raise RestError(404, "The served version has no export.json")
        served = {"model_name": self._name, "model_version": version.number}
        if isinstance(model := version.export.get("model"), str):
            served["model"] = public_name(model)  # Older exports contain the whole path.
        return json_response(version.export | served)

    async def _openapi(self, _: web.Request) -> web.Response:
        current = self._versions.current
        vectors = embeddings.EmbeddingModel.of(current.export)
        sizes = vectors.sizes if vectors else ()
        return json_response(describe_routes(self._name, current.signatures, sizes))

    async def _health(self, _: web.Request) -> web.Response:
        if self.draining:
            raise RestError(503, "The server is shutting down")
        return json_response({"status": "ok", "version": str(self._versions.current.number)})

    async def _show_metrics(self, _: web.Request) -> web.Response:
        self._metrics.version.set(self._versions.current.number)
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    number = version_number(text)
    if number is None:
        raise RestError(400, f"Failed to convert version: {text} to numeric.")
    return number


def _join_parts(parts: Iterator[bytes], is_cancelled: threading.Event) -> bytes:
    return b"".join(itertools.takewhile(lambda _: not is_cancelled.is_set(), parts))


def _route_name(path: str) -> str:
    """Returns the value of the label `route` in the metrics for a URL path, one of a few."""
    if path == _EMBEDDINGS_PATH:
        return "embeddings"
    if path.startswith("/v1/"):
        if _CALL_PATH.fullmatch(path):
            return "predict"
        return "metadata" if path.endswith("/metadata") else "status"
    known = {"/healthz": "health", "/metrics": "metrics", "/export.json": "export"}
    return known.get(path, "page" if path in PAGE_FILES else "other")


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
            403,
            f"The Host header is {request.headers.get('Host', '')!r:.200}; expected an IP address, "
            "localhost, or a name in the server's --allowed_hosts",
        )
    origin = request.headers.get("Origin")
    is_same = origin is None or origin.partition("://")[2] == request.headers.get("Host")
    if not is_same and request.method == "POST" and request.content_type != "application/json":
        raise RestError(
            415,
            f"The request comes from the site {origin!r:.200} with Content-Type: "
            f"{request.content_type!r:.200}; expected application/json",
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
