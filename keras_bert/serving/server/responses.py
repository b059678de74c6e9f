"""Creates the responses of the server: JSON, errors, a model's metadata and status, page files."""

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from keras_bert.common.errors import shorten
from keras_bert.serving.server.embeddings import error_content
from keras_bert.serving.server.versions import Version

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# URL path -> file of the demo page.
PAGE_FILES = {"/": "index.html"} | {
    f"/{name}": name for name in ("page.css", "page.js", "parts.js", "tasks.js")
}
_MAX_MESSAGE = 1000  # maximum number of characters of an error message
_PAGE_FOLDER = Path(__file__).parent / "page"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
}


def json_response(value: Any, status: int = 200) -> web.Response:
    """Creates a response from JSON text in bytes, or from a value, which is converted to JSON."""
    body = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    return web.Response(body=body, status=status, content_type="application/json")


def error_response(status: int, message: str) -> web.Response:
    """Creates the response {"error": message}, which closes the connection for 408 and 413.

    A long message is truncated, because the event loop itself converts it.
    """
    return _error_response(status, _valid(message))


def openai_error_response(status: int, message: str) -> web.Response:
    """Creates an error response in OpenAI's format; otherwise like `error_response`."""
    return _error_response(status, error_content(status, _valid(message)))


def _valid(message: str) -> str:
    # Characters that UTF-8 cannot encode (a lone surrogate from a client) become "?".
    return shorten(message, _MAX_MESSAGE).encode("utf-8", "replace").decode()


def _error_response(status: int, error: Any) -> web.Response:
    response = json_response({"error": error}, status)
    if status in (408, 413):
        response.force_close()
    if status == 503:
        response.headers["Retry-After"] = "1"
    return response


def metadata_response(name: str, version: Version) -> web.Response:
    """Creates the response with the signatures of a version of the model `name`."""
    return json_response(
        {
            "model_spec": {
                "name": name,
                "signature_name": "",
                "version": str(version.number),
            },
            "metadata": {"signature_def": {"signature_def": version.signature_def}},
        }
    )


def status_response(states: Mapping[int, tuple[str, str]]) -> web.Response:
    """Creates the response for {version number: (state, error message or "")} of a model."""
    return json_response(
        {
            "model_version_status": [
                {
                    "version": str(version),
                    "state": state,
                    "status": {
                        "error_code": "UNKNOWN" if error else "OK",
                        "error_message": error,
                    },
                }
                for version, (state, error) in states.items()
            ]
        }
    )


def page_handler(name: str) -> Handler:
    """Reads a file of the demo page, and returns the handler that responds with it."""
    path = _PAGE_FOLDER / name
    content, kind = path.read_bytes(), _TYPES[path.suffix[1:]]

    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=_PAGE_HEADERS)

    return handle
