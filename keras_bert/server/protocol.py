"""Converts request bodies to arrays, and arrays to responses.

The JSON is that of TensorFlow Serving, or for embeddings that of OpenAI. TensorFlow Serving's row
format is {"instances": [...]} -> {"predictions": [...]}, the columnar format {"inputs": {...}} ->
{"outputs": {...}}. Tensors become arrays [B] or [B, S], with strings as bytes in object arrays;
bytes that are not a UTF-8 text are sent as {"b64": "..."}.

The signatures of a model are those of its export.json: {signature: {"inputs": {name: [dtype,
shape]}, "outputs": {name: [dtype, shape]}}}.

orjson does not let other threads run while it parses a body or formats a value. Bodies with a
very large number of lists or objects are therefore rejected, and responses are formatted in parts.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import orjson

from keras_bert.errors import shorten

DEFAULT_SIGNATURE = "serving_default"
_MAX_BRACKETS = 1 << 17  # maximum number of lists and objects in a body, which take 0.1 s
_STEP = 1 << 14  # number of values that are formatted in one step
_TOKEN_COUNT = "num_tokens"  # the output with the number of tokens of each text
_SCHEMA_FILE = Path(__file__).with_name("openapi.json")

Arrays = dict[str, np.ndarray]
Signatures = Mapping[str, Mapping[str, Mapping[str, Sequence]]]


class RestError(Exception):
    """A failed request, which is answered with an HTTP status and {"error": message}."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.message = message
        self.status = status


class Call(NamedTuple):
    """A request: the name of a signature, its inputs, and what encodes the outputs as JSON.

    `encode` yields the text in parts, each made in a few milliseconds, so that other threads run
    in the meantime.
    """

    signature: str
    inputs: Arrays
    encode: Callable[[Arrays], Iterator[bytes]]


# --- Requests ---


def parse_object(body: bytes) -> dict[str, Any]:
    """Parses a body that must be a JSON object in UTF-8, with or without a byte order mark.

    Raises:
        RestError: the body is not JSON, not an object, or has too many lists and objects.
    """
    if body.count(b"[") + body.count(b"{") > _MAX_BRACKETS:
        raise RestError(
            f"The request body has more than {_MAX_BRACKETS} lists and objects (the characters [ "
            "and {), the maximum; send fewer rows per request"
        )
    try:
        value = orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError as error:
        raise RestError(f"The request body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RestError(f"The request body is {describe(value)}; expected a JSON object")
    return value


def describe(value: Any) -> str:
    """Describes a JSON value in an error message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shorten(json.dumps(value, ensure_ascii=False))


def decode_call(body: bytes, signatures: Signatures) -> Call:
    """Decodes the body of a predict request, for a model with these signatures.

    Raises:
        RestError: the request is invalid.
    """
    document = parse_object(body)
    name = document.get("signature_name", "") or DEFAULT_SIGNATURE
    if not isinstance(name, str) or name not in signatures:
        raise RestError(
            f"signature_name: {describe(name)}; expected one of {', '.join(sorted(signatures))}"
        )
    by_row = "instances" in document
    if by_row == ("inputs" in document):
        raise RestError("The request body must have either 'instances' or 'inputs'")
    specs = signatures[name]["inputs"]
    if by_row:
        columns = _columns_of_rows(document["instances"], specs)
    else:
        columns = _columns(document["inputs"], specs)
    inputs = {key: to_array(columns[key], key, *spec) for key, spec in specs.items()}
    if len({len(array) for array in inputs.values()}) > 1:
        counts = ", ".join(f"{key} has {len(array)}" for key, array in inputs.items())
        raise RestError(f"Inputs must have equal numbers of rows: {counts}")
    return Call(name, inputs, encode_rows if by_row else encode_columns)


def _columns_of_rows(rows: Any, specs: Mapping[str, Any]) -> dict[str, list]:
    if not isinstance(rows, list) or not rows:
        raise RestError("instances: expected a list of at least one row")
    if len(specs) == 1 and not any(map(_is_named, rows)):
        return {next(iter(specs)): rows}
    for number, row in enumerate(rows):
        if not _is_named(row) or row.keys() != specs.keys():
            names = f"an object with {shorten(', '.join(row))}" if _is_named(row) else describe(row)
            raise RestError(
                f"instances[{number}]: {names}; expected an object with {', '.join(sorted(specs))}"
            )
    return {name: [row[name] for row in rows] for name in specs}


def _columns(value: Any, specs: Mapping[str, Any]) -> dict[str, Any]:
    if len(specs) == 1 and not _is_named(value):
        return {next(iter(specs)): value}
    if not _is_named(value) or not specs.keys() <= value.keys():
        names = ", ".join(sorted(specs))
        raise RestError(f"inputs: found no object with all inputs; expected {names}")
    return value


def _is_named(value: Any) -> bool:
    """Returns whether a JSON value is an object of named tensors, and not {"b64": string}."""
    return isinstance(value, dict) and not (len(value) == 1 and isinstance(value.get("b64"), str))


def to_array(value: Any, name: str, dtype: str, shape: Sequence[int]) -> np.ndarray:
    """Converts nested lists of strings or integers to an array, for the input with this name.

    Raises:
        RestError: the lists are ragged, or a value has another type or is out of range.
    """
    sizes, leaves = [], [value]
    for _ in shape:
        if not all(isinstance(leaf, list) and len(leaf) == len(leaves[0]) for leaf in leaves):
            raise RestError(f"{name}: expected lists of equal length, {len(shape)} deep")
        sizes.append(len(leaves[0]) if leaves else 0)
        leaves = [element for leaf in leaves for element in leaf]
    try:
        return _convert(leaves, dtype).reshape(sizes)
    except (TypeError, OverflowError):
        wrong = next(i for i, leaf in enumerate(leaves) if not _fits(leaf, dtype))
        position = "".join(f"[{int(index)}]" for index in np.unravel_index(wrong, sizes))
        kind = f"a number of type {dtype}"
        if dtype == "string":
            kind = 'a string, or bytes as {"b64": string in base 64}'
        raise RestError(f"{name}{position}: {describe(leaves[wrong])}; expected {kind}") from None


def _convert(values: list, dtype: str) -> np.ndarray:
    """Converts scalars to an array [N]; raises a TypeError or OverflowError for invalid ones."""
    if dtype == "string":
        array = np.empty(len(values), object)
        array[:] = [_to_bytes(value) for value in values]
        return array
    if not set(map(type, values)) <= {int}:
        raise TypeError
    return np.array(values, dtype)


def _fits(value: Any, dtype: str) -> bool:
    try:
        _convert([value], dtype)
    except (TypeError, OverflowError):
        return False
    return True


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        encoded = value["b64"].rstrip("=")
        try:
            return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except ValueError:
            pass
    raise TypeError


# --- Responses ---


def encode_rows(outputs: Arrays) -> Iterator[bytes]:
    """Encodes outputs as {"predictions": [row, ...]}; a row of a single output has no name.

    Bytes that are not UTF-8 become U+FFFD.
    """
    yield b'{"predictions":'
    if len(outputs) == 1:
        yield from encode_array(*outputs.values())
    else:
        names, arrays = zip(*sorted(outputs.items()), strict=True)
        rows = len(arrays[0])
        step = max(1, _STEP * rows // max(1, sum(array.size for array in arrays)))
        for start in range(0, rows, step):
            columns = [_json_values(array[start : start + step]) for array in arrays]
            objects = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            yield (b"," if start else b"[") + _dumps(objects)[1:-1]
        yield b"]"
    yield b"}"


def encode_columns(outputs: Arrays) -> Iterator[bytes]:
    """Encodes outputs as {"outputs": {name: rows}}; a single output has no name."""
    yield b'{"outputs":'
    if len(outputs) == 1:
        yield from encode_array(*outputs.values())
    else:
        for index, name in enumerate(sorted(outputs)):
            yield (b"," if index else b"{") + _dumps(name) + b":"
            yield from encode_array(outputs[name])
        yield b"}"
    yield b"}"


def encode_array(array: np.ndarray) -> Iterator[bytes]:
    """Yields the JSON text of an array of at least one dimension in parts."""
    step = max(1, _STEP * len(array) // max(1, array.size))
    for start in range(0, max(1, len(array)), step):
        yield (b"," if start else b"[") + _dumps(_json_values(array[start : start + step]))[1:-1]
    yield b"]"


def _json_values(array: np.ndarray) -> Any:
    """Converts an array to values that `_dumps` formats: an array, or nested lists."""
    if array.dtype != object:
        return np.ascontiguousarray(array)
    texts = np.empty(array.size, object)
    texts[:] = [value.decode("utf-8", "replace") for value in array.flat]
    return texts.reshape(array.shape).tolist()


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


# --- Embeddings in OpenAI's format ---
#
#     {"model": NAME, "input": "a text" or ["a text", ...]}
#     -> {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [...]}, ...],
#         "model": NAME, "usage": {"prompt_tokens": N, "total_tokens": N}}
#
# Optional members of a request are `encoding_format` ("float" or "base64", little-endian float32),
# `dimensions` (a Matryoshka size of the model) and `user`, which is ignored; null means absent. N
# is the number of tokens after truncation, including [CLS] and [SEP].


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


def embedding_model(export: Mapping[str, Any]) -> EmbeddingModel | None:
    """Reads the export.json of a version; returns None if it is not of an embedding model.

    The vector is the one that sentence-transformers uses, or the mean if that is unknown.
    """
    name = export.get("pooling") or "mean"
    outputs = export["signatures"][DEFAULT_SIGNATURE]["outputs"]
    if export["task"] != "embedding" or not outputs.keys() >= {name, _TOKEN_COUNT}:
        return None
    width = outputs[name][1][-1]
    sizes = {size for size in export.get("matryoshka_sizes", ()) if size < width} | {width}
    return EmbeddingModel(name, width, tuple(sorted(sizes)), export.get("normalize") is True)


def decode_embedding_call(body: bytes, model: EmbeddingModel, name: str) -> Call:
    """Decodes the body of a request to the model `name`.

    Raises:
        RestError: the request is invalid (status 400), or for another model (404).
    """
    body_members = parse_object(body)
    document = {"encoding_format": "float", "dimensions": model.width}
    document |= {key: value for key, value in body_members.items() if value is not None}
    texts = document.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    sizes = ", ".join(map(str, model.sizes))
    # Member -> whether its value is valid, and what is expected.
    members = {
        "model": (isinstance(document.get("model"), str), "the name of the served model"),
        "input": (isinstance(texts, list) and texts, "a string or a list of strings"),
        "encoding_format": (
            document["encoding_format"] in ("float", "base64"),
            '"float" or "base64"',
        ),
        "dimensions": (
            type(document["dimensions"]) is int and document["dimensions"] in model.sizes,
            f"a size that the model was trained for: {sizes}",
        ),
        "user": (True, ""),
    }
    for member in body_members:
        if member not in members:
            raise RestError(f"{shorten(member)}: unknown; expected {', '.join(members)}")
    for member, (is_valid, expected) in members.items():
        if not is_valid:
            value = describe(document[member]) if member in document else "missing"
            raise RestError(f"{member}: {value}; expected {expected}")
    if document["model"] != name:
        raise RestError(f"model: {shorten(document['model'])} does not exist; expected {name}", 404)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise RestError(
                f"input[{index}]: {describe(text)}; expected a string that is not empty"
            )
    encode = partial(
        encode_embeddings,
        model=model,
        name=name,
        size=document["dimensions"],
        as_base64=document["encoding_format"] == "base64",
    )
    return Call(DEFAULT_SIGNATURE, {"text": _convert(texts, "string")}, encode)


def encode_embeddings(
    outputs: Arrays, *, model: EmbeddingModel, name: str, size: int, as_base64: bool
) -> Iterator[bytes]:
    """Yields the JSON text of a response in parts, one for each text."""
    vectors = outputs[model.output].astype("<f4", copy=False)[:, :size]
    if model.normalize and size < model.width:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = (vectors / np.maximum(lengths, 1e-12)).astype("<f4")
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        values = base64.b64encode(vector.tobytes()).decode() if as_base64 else vector
        item = {"object": "embedding", "index": index, "embedding": values}
        yield b"," * bool(index) + _dumps(item)
    count = int(outputs[_TOKEN_COUNT].sum())
    usage = {"prompt_tokens": count, "total_tokens": count}
    yield b"]," + orjson.dumps({"model": name, "usage": usage})[1:]


# --- The OpenAPI document ---


def describe_routes(
    model_name: str, signatures: Signatures, vector_sizes: Sequence[int] = ()
) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of the server, from openapi.json.

    `vector_sizes` are the sizes of embeddings that a request may ask for.
    """
    document = json.loads(_SCHEMA_FILE.read_text("utf-8").replace("MODEL_NAME", quote(model_name)))
    schemas = document["components"]["schemas"]
    schemas["Predict"] = {
        "anyOf": [
            _body_schema(name, signature["inputs"], by_row)
            for name, signature in sorted(signatures.items())
            for by_row in (True, False)
        ]
    }
    request = schemas["EmbeddingsRequest"]["properties"]
    request["model"]["enum"] = [model_name]
    if vector_sizes:
        request["dimensions"]["enum"] = [*vector_sizes, None]
    return document


def _body_schema(name: str, specs: Mapping[str, Sequence], by_row: bool) -> dict[str, Any]:
    tensors = {key: _tensor_schema(*spec, by_row) for key, spec in specs.items()}
    kinds = [{"type": "object", "required": sorted(tensors), "properties": tensors}]
    if by_row:
        kinds[0]["additionalProperties"] = False
    if len(specs) == 1:
        kinds += tensors.values()
    if by_row:  # The rows are either all objects of named inputs or all values of the only input.
        kinds = [{"type": "array", "minItems": 1, "items": kind} for kind in kinds]
    member, other = ("instances", "inputs") if by_row else ("inputs", "instances")
    is_default = name == DEFAULT_SIGNATURE
    return {
        "type": "object",
        "required": [member] if is_default else [member, "signature_name"],
        "properties": {
            "signature_name": {"enum": [name, ""] if is_default else [name]},
            member: {"anyOf": kinds},
        },
        "not": {"required": [other]},
    }


def _tensor_schema(dtype: str, shape: Sequence[int], by_row: bool) -> dict[str, Any]:
    """Returns the JSON schema of a tensor, or with `by_row`, of one of its rows."""
    if dtype == "string":
        schema = {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Base64"}]}
    else:
        limits = np.iinfo(dtype)
        schema = {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
    for _ in shape[int(by_row) :]:
        schema = {"type": "array", "items": schema}
    return schema
