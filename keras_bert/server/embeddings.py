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
from typing import Any, NamedTuple

import numpy as np
import orjson

from keras_bert.errors import shorten
from keras_bert.server.protocol import (
    DEFAULT_SIGNATURE,
    Arrays,
    Input,
    RestError,
    describe,
    encode_array,
    parse_object,
    to_array,
)

_MEMBERS = ("model", "input", "encoding_format", "dimensions", "user")
_TOKENS = "num_tokens"  # the output with the number of tokens of each text


class EmbeddingModel(NamedTuple):
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


class EmbeddingCall(NamedTuple):
    """A request for vectors of a size, as a call of a signature."""

    signature: str
    inputs: Arrays
    size: int
    as_base64: bool


def embedding_model(export: Mapping[str, Any] | None) -> EmbeddingModel | None:
    """Reads the export.json of a version; returns None if it is not of an embedding model.

    The vector is the one that sentence-transformers uses, or the mean if that is unknown.
    """
    export = export or {}
    name = export.get("pooling") or "mean"
    signature = export.get("signatures", {}).get(DEFAULT_SIGNATURE, {})
    outputs = signature.get("outputs", {})
    if export.get("task") != "embedding" or not outputs.keys() >= {name, _TOKENS}:
        return None
    width = outputs[name][1][-1]
    sizes = {size for size in export.get("matryoshka_sizes", ()) if size < width} | {width}
    return EmbeddingModel(name, width, tuple(sorted(sizes)), export.get("normalize") is True)


def decode_request(body: bytes, model: EmbeddingModel, name: str) -> EmbeddingCall:
    """Decodes the body of a request to the model `name`.

    Raises:
        RestError: the request is invalid (status 400), or for another model (404).
    """
    document = parse_object(body)
    for member in document:
        if member not in _MEMBERS:
            raise RestError(f"{shorten(member)}: unknown; expected {', '.join(_MEMBERS)}")
    members = {member: value for member, value in document.items() if value is not None}
    encoding = members.get("encoding_format", "float")
    size = members.get("dimensions", model.width)
    texts = members.get("input")
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(members.get("model"), str):
        raise _unexpected("model", members.get("model"), "the name of the served model")
    if members["model"] != name:
        raise RestError(f"model: {shorten(members['model'])} does not exist; expected {name}", 404)
    if encoding not in ("float", "base64"):
        raise _unexpected("encoding_format", encoding, '"float" or "base64"')
    if type(size) is not int or size not in model.sizes:
        sizes = ", ".join(map(str, model.sizes))
        raise _unexpected("dimensions", size, f"a size that the model was trained for: {sizes}")
    if not isinstance(texts, list) or not texts:
        raise _unexpected("input", texts, "a string or a list of strings")
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise _unexpected(f"input[{index}]", text, "a string that is not empty")
    inputs = {"text": to_array(texts, "input", Input("string", (None,)))}
    return EmbeddingCall(DEFAULT_SIGNATURE, inputs, size, encoding == "base64")


def encode_response(
    call: EmbeddingCall, outputs: Arrays, model: EmbeddingModel, name: str
) -> Iterator[bytes]:
    """Yields the JSON text of a response in parts, one for each text."""
    vectors = outputs[model.output].astype("<f4", copy=False)[:, : call.size]
    if model.normalize and call.size < model.width:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = (vectors / np.maximum(lengths, 1e-12)).astype("<f4")
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        yield b"," * bool(index) + b'{"object":"embedding","index":%d,"embedding":' % index
        if call.as_base64:
            yield b'"' + base64.b64encode(vector.tobytes()) + b'"'
        else:
            yield from encode_array(vector, model.output)
        yield b"}"
    count = int(outputs[_TOKENS].sum())
    usage = {"prompt_tokens": count, "total_tokens": count}
    yield b"]," + orjson.dumps({"model": name, "usage": usage})[1:]


def _unexpected(name: str, value: Any, expected: str) -> RestError:
    quoted = "missing" if value is None else describe(value)
    return RestError(f"{name}: {quoted}; expected {expected}")
