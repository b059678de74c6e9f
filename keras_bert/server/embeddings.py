"""Decodes requests for embeddings in OpenAI's format, and encodes the responses.

    {"model": NAME, "input": "a text" or ["a text", ...]}
    -> {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [...]}, ...],
        "model": NAME, "usage": {"prompt_tokens": N, "total_tokens": N}}

Optional members of a request are `encoding_format` ("float" or "base64", little-endian float32),
`dimensions` (a Matryoshka size of the model) and `user`, which is ignored; null means absent. N is
the number of tokens after truncation, including [CLS] and [SEP].
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_bert.errors import shorten
from keras_bert.server.errors import RestError, bad_request
from keras_bert.server.json_text import format_json, parse_object
from keras_bert.server.protocol import DEFAULT_SIGNATURE, Arrays, too_many_rows
from keras_bert.server.tensors import format_compact, make_array, read_value, write_json

_MEMBERS = ("model", "input", "encoding_format", "dimensions", "user")
_FORMATS = (b"float", b"base64")
_TOKENS = "num_tokens"  # the output with the number of tokens of each text


@dataclass(frozen=True)
class EmbeddingModel:
    """The vectors that a served version returns.

    Attributes:
        output: the output with the vector of a text.
        width: the size of this vector.
        sizes: the sizes that a request may ask for.
        normalize: whether vectors have length 1.
    """

    output: str
    width: int
    sizes: tuple[int, ...]
    normalize: bool

    @classmethod
    def of(cls, export: Mapping[str, Any] | None) -> "EmbeddingModel | None":
        """Reads the export.json of a version; returns None if it is not of an embedding model.

        The vector is the one that sentence-transformers uses, or the mean if that is unknown.
        """
        if export is None or export.get("task") != "embedding":
            return None
        name = export.get("pooling") or "mean"
        try:
            outputs = export["signatures"][DEFAULT_SIGNATURE]["outputs"]
            width = int(outputs[name][1][-1])
            if _TOKENS not in outputs:
                return None
            sizes = {int(size) for size in export.get("matryoshka_sizes", ())}
        except (KeyError, IndexError, TypeError, ValueError):
            return None
        allowed = sorted({width, *(size for size in sizes if 0 < size < width)})
        return cls(name, width, tuple(allowed), export.get("normalize") is True)


@dataclass(frozen=True)
class EmbeddingCall:
    """A request for the vectors of texts, as a call of a signature."""

    model: EmbeddingModel
    inputs: Arrays
    size: int
    as_base64: bool
    signature: str = DEFAULT_SIGNATURE


def require_model(export: Mapping[str, Any] | None) -> EmbeddingModel:
    """Returns the vectors of a version; raises a RestError with status 404 if it has none."""
    model = EmbeddingModel.of(export)
    if model is None:
        raise RestError(
            404,
            "The served version returns no embeddings with token counts; expected the export of a "
            "TextEmbedder of this version of keras_bert",
        )
    return model


def decode_request(body: bytes, model: EmbeddingModel, name: str, max_rows: int) -> EmbeddingCall:
    """Decodes the body of a request to the model `name`, for at most `max_rows` texts.

    Raises:
        RestError: the request is invalid (status 400), or for another model (404).
    """
    document = parse_object(body)
    for member in document:
        if member not in _MEMBERS:
            raise bad_request(f"{shorten(member)}: unknown; expected {', '.join(_MEMBERS)}")
    _check_model(document.get("model"), name)
    encoding = _optional(document, "encoding_format", b"float")
    if not isinstance(encoding, bytes) or encoding not in _FORMATS:
        raise _unexpected("encoding_format", encoding, '"float" or "base64"')
    size = _optional(document, "dimensions", model.width)
    if type(size) is not int or size not in model.sizes:
        sizes = ", ".join(map(str, model.sizes))
        raise _unexpected("dimensions", size, f"a size that the model was trained for: {sizes}")
    texts = _texts(document.get("input"), max_rows)
    flat: list[bytes] = []
    inputs = make_array(flat, read_value(texts, "string", flat), "string")
    return EmbeddingCall(model, {"text": inputs}, size, encoding == b"base64")


def encode_response(call: EmbeddingCall, outputs: Arrays, name: str) -> Iterator[bytes]:
    """Yields the JSON text of a response in parts, one for each text."""
    vectors = outputs[call.model.output].astype("<f4", copy=False)[:, : call.size]
    if call.model.normalize and call.size < call.model.width:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = (vectors / np.maximum(lengths, 1e-12)).astype("<f4")
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        yield b"," * bool(index) + b'{"object":"embedding","index":%d,"embedding":' % index
        if call.as_base64:
            yield b'"' + base64.b64encode(vector.tobytes()) + b'"'
        else:
            yield from write_json(vector, as_base64=False)
        yield b"}"
    count = int(outputs[_TOKENS].sum())
    usage = {"prompt_tokens": count, "total_tokens": count}
    yield b'],"model":' + format_compact(name) + b',"usage":' + format_compact(usage) + b"}"


def error_content(status: int, message: str) -> dict[str, Any]:
    """Returns the value of "error" in an error response."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = "model_not_found" if status == 404 else None
    return {"message": message, "type": kind, "param": None, "code": code}


def _optional(document: Mapping[str, Any], member: str, default: Any) -> Any:
    value = document.get(member)
    return default if value is None else value


def _check_model(model: Any, name: str) -> None:
    if not isinstance(model, bytes):
        raise _unexpected("model", model, "the name of the served model")
    if model != name.encode():
        found = shorten(model.decode("utf-8", "replace"))
        raise RestError(404, f"model: {found} does not exist; expected {name}")


def _texts(value: Any, max_rows: int) -> list[bytes]:
    texts = [value] if isinstance(value, bytes) else value
    if not isinstance(texts, list) or not texts:
        raise _unexpected("input", value, "a string or a list of strings")
    if len(texts) > max_rows:
        raise too_many_rows(len(texts), max_rows)
    for index, text in enumerate(texts):
        if not isinstance(text, bytes) or not text:
            raise _unexpected(f"input[{index}]", text, "a string that is not empty")
    return texts


def _unexpected(name: str, value: Any, expected: str) -> RestError:
    found = "missing" if value is None else format_json(value)
    return bad_request(f"{name}: {found}; expected {expected}")
