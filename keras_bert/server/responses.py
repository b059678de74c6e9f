"""Creates the responses of the server: JSON, errors, metadata, status, page files, OpenAPI."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from aiohttp import web

from keras_bert.errors import shorten
from keras_bert.server.embeddings import error_content
from keras_bert.server.protocol import DEFAULT_SIGNATURE, Input
from keras_bert.server.versions import Version

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
_SCHEMA_FILE = Path(__file__).with_name("openapi.json")
_STRING = {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Base64"}]}


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


def describe_routes(
    model_name: str,
    signatures: Mapping[str, Mapping[str, Input]],
    vector_sizes: Sequence[int] = (),
) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of the server, from openapi.json.

    Args:
        model_name: the name of the served model.
        signatures: {signature: {input name: `Input`}}.
        vector_sizes: the sizes of embeddings that a request may ask for; empty for a model that
            returns no embeddings.
    """
    document = json.loads(_SCHEMA_FILE.read_text("utf-8").replace("MODEL_NAME", quote(model_name)))
    bodies = [
        body
        for name, inputs in sorted(signatures.items())
        for body in (_rows_schema(name, inputs), _columns_schema(name, inputs))
    ]
    schemas = document["components"]["schemas"]
    schemas["Predict"] = {"anyOf": bodies}
    if vector_sizes:
        request = schemas["EmbeddingsRequest"]["properties"]
        request["model"]["enum"] = [model_name]
        request["dimensions"]["enum"] = [*vector_sizes, None]
    else:
        del document["paths"]["/v1/embeddings"]
        for name in ("EmbeddingsRequest", "EmbeddingsResponse", "OpenAIError"):
            del schemas[name]
        del document["components"]["responses"]["OpenAIError"]
    return document


def _rows_schema(name: str, inputs: Mapping[str, Input]) -> dict[str, Any]:
    row = _object_schema(
        {key: _tensor_schema(tensor, skip_dimensions=1) for key, tensor in inputs.items()}
    )
    kinds = [row | {"additionalProperties": False}]
    if len(inputs) == 1:
        kinds += row["properties"].values()
    # The rows are either all objects of named inputs or all values of the only input.
    rows = {"anyOf": [{"type": "array", "minItems": 1, "items": kind} for kind in kinds]}
    return _body_schema(name, {"instances": rows}, "inputs")


def _columns_schema(name: str, inputs: Mapping[str, Input]) -> dict[str, Any]:
    columns = [_object_schema({key: _tensor_schema(tensor) for key, tensor in inputs.items()})]
    if len(inputs) == 1:
        columns += columns[0]["properties"].values()
    return _body_schema(name, {"inputs": {"anyOf": columns}}, "instances")


def _body_schema(name: str, values: dict[str, Any], other: str) -> dict[str, Any]:
    is_default = name == DEFAULT_SIGNATURE
    names = {"enum": [name, ""] if is_default else [name]}
    body = _object_schema({"signature_name": names} | values)
    if is_default:
        body["required"].remove("signature_name")
    return body | {"not": {"required": [other]}}


def _object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": sorted(properties), "properties": properties}


def _tensor_schema(tensor: Input, skip_dimensions: int = 0) -> dict[str, Any]:
    """Returns the JSON schema of a tensor without its first `skip_dimensions` dimensions."""
    schema = _value_schema(tensor.dtype)
    if tensor.shape is None:
        return {"anyOf": [schema, {"type": "array"}]}
    for size in reversed(tensor.shape[skip_dimensions:]):
        schema = {"type": "array", "items": schema}
        if size is not None:
            schema |= {"minItems": size, "maxItems": size}
    return schema


def _value_schema(dtype: str) -> dict[str, Any]:
    if dtype == "string":
        return _STRING
    if dtype == "bool":
        return {"type": "boolean"}
    if dtype in ("float", "double"):
        return {"type": "number"}
    limits = np.iinfo(dtype)
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
