"""Converts request bodies to arrays, and arrays to responses.

The JSON is that of TensorFlow Serving, or for embeddings that of OpenAI. TensorFlow Serving's row
format is {"instances": [...]} -> {"predictions": [...]}, the columnar format {"inputs": {...}} ->
{"outputs": {...}}. Tensors become arrays [B, ...], with strings as bytes in object arrays; bytes
that are not a UTF-8 text are sent as {"b64": "..."}. dtypes have TensorFlow's names.

orjson does not let other threads run while it parses a body or formats a value. Bodies with a
very large number of lists or objects are therefore rejected, and responses are formatted in parts.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import orjson

from keras_bert.errors import shorten

DEFAULT_SIGNATURE = "serving_default"
_MAX_BRACKETS = 1 << 17  # maximum number of lists and objects in a body, which take 0.1 s
_MAX_RANK = 32  # NumPy allows 64; JSON lists may be nested deeper.
_STEP = 1 << 14  # maximum number of values that are converted in one step
_INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint32", "uint64")
_FLOATS = ("float", "double")
_EMBEDDING_MEMBERS = ("model", "input", "encoding_format", "dimensions", "user")
_TOKEN_COUNT = "num_tokens"  # the output with the number of tokens of each text
_SCHEMA_FILE = Path(__file__).with_name("openapi.json")

Arrays = dict[str, np.ndarray]


class RestError(Exception):
    """A failed request, which is answered with an HTTP status and {"error": message}."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.message = message
        self.status = status


class Input(NamedTuple):
    """An input of a signature.

    `dtype` is TensorFlow's name of the dtype: string, int32, float, ... `shape` has None for each
    dimension of any size; if any shape is allowed, `shape` itself is None.
    """

    dtype: str
    shape: tuple[int | None, ...] | None


class Call(NamedTuple):
    """A predict request: the name of a signature, and its inputs, {name: array}.

    `by_row` is whether the request, and therefore the response, is in row format.
    """

    signature: str
    inputs: Arrays
    by_row: bool


# --- Requests ---


def parse_object(body: bytes) -> dict[str, Any]:
    """Parses a body that must be a JSON object in UTF-8, with or without a byte order mark.

    Python's NaN, Infinity and -Infinity are accepted.

    Raises:
        RestError: the body is not JSON, not an object, or has too many lists and objects.
    """
    if body.count(b"[") + body.count(b"{") > _MAX_BRACKETS:
        raise RestError(
            f"The request body has more than {_MAX_BRACKETS} lists and objects (the characters [ "
            "and {), the maximum; send fewer rows per request"
        )
    body = body.removeprefix(b"\xef\xbb\xbf")
    try:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            if b"NaN" not in body and b"Infinity" not in body:
                raise
            value = json.loads(body.decode())  # orjson has no such numbers.
    except (ValueError, RecursionError) as error:
        raise RestError(f"The request body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RestError(f"The request body is {describe(value)}; expected a JSON object")
    return value


def describe(value: Any) -> str:
    """Describes a JSON value in an error message."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shorten(json.dumps(value, ensure_ascii=False))


def decode_call(body: bytes, signatures: Mapping[str, Mapping[str, Input]]) -> Call:
    """Decodes the body of a predict request, for a model with these signatures.

    `signatures` is {signature: {input name: `Input`}}.

    Raises:
        RestError: the request is invalid.
    """
    document = parse_object(body)
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise RestError(f"signature_name: {describe(name)}; expected a string")
    name = name or DEFAULT_SIGNATURE
    if name not in signatures:
        names = ", ".join(sorted(signatures))
        raise RestError(f'Serving signature name: "{shorten(name)}" not found; expected {names}')
    by_row = "instances" in document
    if by_row == ("inputs" in document):
        raise RestError("The request body must have either 'instances' or 'inputs'")
    if by_row:
        columns = _columns_of_rows(document["instances"], signatures[name])
    else:
        columns = _columns(document["inputs"], signatures[name])
    inputs = {key: to_array(columns[key], key, tensor) for key, tensor in signatures[name].items()}
    return Call(name, inputs, by_row)


def _columns_of_rows(rows: Any, expected: Mapping[str, Input]) -> dict[str, list]:
    if not isinstance(rows, list) or not rows:
        raise RestError("instances: expected a list of at least one row")
    if len(expected) == 1 and not any(map(_is_named, rows)):
        return {next(iter(expected)): rows}
    for number, row in enumerate(rows):
        if not _is_named(row) or row.keys() != expected.keys():
            names = f"an object with {shorten(', '.join(row))}" if _is_named(row) else describe(row)
            raise RestError(
                f"instances[{number}]: {names}; expected an object with "
                f"{', '.join(sorted(expected))}"
            )
    return {name: [row[name] for row in rows] for name in expected}


def _columns(value: Any, expected: Mapping[str, Input]) -> dict[str, Any]:
    if len(expected) == 1 and not _is_named(value):
        return {next(iter(expected)): value}
    if not _is_named(value) or not expected.keys() <= value.keys():
        names = ", ".join(sorted(expected))
        raise RestError(f"inputs: found no object with all inputs; expected {names}")
    return value


def _is_named(value: Any) -> bool:
    """Returns whether a JSON value is an object of named tensors, and not {"b64": string}."""
    return isinstance(value, dict) and not (len(value) == 1 and isinstance(value.get("b64"), str))


def to_array(value: Any, name: str, tensor: Input) -> np.ndarray:
    """Converts a scalar or nested lists to an array, for the input with this name.

    Raises:
        RestError: the lists are ragged, or a value has another type or is out of range.
    """
    shape, leaves = _flatten(value, name)
    expected = (None,) * len(shape) if tensor.shape is None else tensor.shape
    if len(shape) != len(expected) or any(
        limit not in (None, size) for limit, size in zip(expected, shape, strict=True)
    ):
        raise RestError(
            f"Input {name} has shape {_shape_text(shape)}; expected {_shape_text(expected)}"
        )
    if tensor.dtype not in ("string", "bool", *_INTEGERS, *_FLOATS):
        raise RestError(f"{name}: JSON cannot represent values of type {tensor.dtype}", 501)
    parts = []
    for start in range(0, max(1, len(leaves)), _STEP):
        part = leaves[start : start + _STEP]
        try:
            parts.append(_convert(part, tensor.dtype))
        except (TypeError, OverflowError):
            wrong = next(i for i, leaf in enumerate(part) if not _fits(leaf, tensor.dtype))
            indices = np.unravel_index(start + wrong, shape) if shape else ()
            position = name + "".join(f"[{int(index)}]" for index in indices)
            kind = {
                "string": 'a string, or bytes as {"b64": string in base 64}',
                "bool": "true or false",
            }.get(tensor.dtype, f"a number of type {tensor.dtype}")
            raise RestError(f"{position}: {describe(part[wrong])}; expected {kind}") from None
    return np.concatenate(parts).reshape(shape)


def _flatten(value: Any, name: str) -> tuple[list[int], list]:
    """Returns the shape of nested lists, and their values that are not lists."""
    shape, leaves = [], [value]
    while any(isinstance(leaf, list) for leaf in leaves):
        size = len(leaves[0]) if isinstance(leaves[0], list) else -1
        if not all(isinstance(leaf, list) and len(leaf) == size for leaf in leaves):
            raise RestError(f"{name}: expected rows and lists of equal length")
        shape.append(size)
        if len(shape) > _MAX_RANK:
            raise RestError(f"{name}: expected lists that are nested at most {_MAX_RANK} deep")
        leaves = [element for leaf in leaves for element in leaf]
    return shape, leaves


def _convert(values: list, dtype: str) -> np.ndarray:
    """Converts scalars to an array [N]; raises a TypeError or OverflowError for invalid ones."""
    if dtype == "string":
        array = np.empty(len(values), object)
        array[:] = [_to_bytes(value) for value in values]
        return array
    types = {bool} if dtype == "bool" else {int} if dtype in _INTEGERS else {int, float}
    if not set(map(type, values)) <= types:
        raise TypeError
    array = np.array(values, np.float64 if dtype in _FLOATS else dtype)
    if dtype != "float":
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    if (np.isinf(single) & ~np.isinf(array)).any():
        raise OverflowError
    return single


def _fits(value: Any, dtype: str) -> bool:
    try:
        _convert([value], dtype)
    except (TypeError, OverflowError):
        return False
    return True


def _to_bytes(value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
            encoded = value["b64"].rstrip("=")
            return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:  # A lone surrogate, or not base 64.
        pass
    raise TypeError


def _shape_text(shape: Sequence[int | None]) -> str:
    return "[" + ",".join("-1" if size is None else str(size) for size in shape) + "]"


# --- Responses ---


def encode_call(call: Call, outputs: Arrays) -> Iterator[bytes]:
    """Encodes the response to a predict request as JSON, in the format of the request.

    Yields the text in parts, each made in a few milliseconds, so that other threads run in the
    meantime. Bytes that are not UTF-8 become U+FFFD, except in outputs named `*_bytes`, which are
    encoded in base 64.

    Raises:
        RestError: JSON cannot represent the dtype of an output; or, in row format, an output has
            no rows, or the outputs have different numbers of rows.
    """
    rows = None
    for name, array in sorted(outputs.items()) if call.by_row else ():
        rows = len(array) if rows is None and array.ndim else rows
        if not array.ndim or not len(array) or len(array) != rows:
            raise RestError(f"Output {name} has shape {_shape_text(array.shape)}; expected rows")
    yield b'{"predictions":' if call.by_row else b'{"outputs":'
    if len(outputs) == 1:
        ((name, array),) = outputs.items()
        yield from encode_array(array, name)
    elif not call.by_row:
        yield from _encode_object(outputs)
    else:
        step = max(1, _STEP * rows // max(1, sum(array.size for array in outputs.values())))
        for start in range(0, rows, step):
            yield b"," if start else b"["
            part = {name: array[start : start + step] for name, array in sorted(outputs.items())}
            if sum(array.size for array in part.values()) > _STEP:  # One wide row.
                yield from _encode_object({name: array[0] for name, array in part.items()})
                continue
            columns = [_json_values(array, name) for name, array in part.items()]
            row_objects = [dict(zip(part, row, strict=True)) for row in zip(*columns, strict=True)]
            yield _dumps(row_objects)[1:-1]
        yield b"]"
    yield b"}"


def _encode_object(outputs: Arrays) -> Iterator[bytes]:
    for index, name in enumerate(sorted(outputs)):
        yield (b"," if index else b"{") + _dumps(name) + b":"
        yield from encode_array(outputs[name], name)
    yield b"}"


def encode_array(array: np.ndarray, name: str) -> Iterator[bytes]:
    """Yields the JSON text of the output with this name in parts, as `encode_call` does."""
    if array.size <= _STEP:
        yield _dumps(_json_values(array, name))
        return
    rows = max(1, _STEP * len(array) // array.size)
    for start in range(0, len(array), rows):
        yield b"," if start else b"["
        part = array[start : start + rows]
        if part.size <= _STEP:
            yield _dumps(_json_values(part, name))[1:-1]
        else:
            yield from encode_array(part[0], name)
    yield b"]"


def _json_values(array: np.ndarray, name: str) -> Any:
    """Converts an array to values that `_dumps` formats: an array, or nested lists."""
    if array.dtype == object:
        if name.endswith("_bytes"):
            flat = [{"b64": base64.b64encode(value).decode()} for value in array.flat]
        else:
            flat = [value.decode("utf-8", "replace") for value in array.flat]
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        # orjson would write null. Texts of float32 have fewer digits than those of float64.
        values = array.ravel().astype(str).astype(np.float64).tolist()
        flat = [orjson.Fragment(json.dumps(value)) for value in values]
    elif array.dtype.kind in "biuf":
        return np.ascontiguousarray(array) if array.ndim else array[()]
    else:
        raise RestError(f"{name}: JSON cannot represent values of type {array.dtype}")
    nested = np.empty(array.size, object)
    nested[:] = flat
    return nested.reshape(array.shape).tolist()


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
    if export.get("task") != "embedding" or not outputs.keys() >= {name, _TOKEN_COUNT}:
        return None
    width = outputs[name][1][-1]
    sizes = {size for size in export.get("matryoshka_sizes", ()) if size < width} | {width}
    return EmbeddingModel(name, width, tuple(sorted(sizes)), export.get("normalize") is True)


def decode_embedding_call(body: bytes, model: EmbeddingModel, name: str) -> EmbeddingCall:
    """Decodes the body of a request to the model `name`.

    Raises:
        RestError: the request is invalid (status 400), or for another model (404).
    """
    document = parse_object(body)
    for member in document:
        if member not in _EMBEDDING_MEMBERS:
            raise RestError(f"{shorten(member)}: unknown; expected {', '.join(_EMBEDDING_MEMBERS)}")
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


def encode_embeddings(
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
    count = int(outputs[_TOKEN_COUNT].sum())
    usage = {"prompt_tokens": count, "total_tokens": count}
    yield b"]," + orjson.dumps({"model": name, "usage": usage})[1:]


def _unexpected(name: str, value: Any, expected: str) -> RestError:
    quoted = "missing" if value is None else describe(value)
    return RestError(f"{name}: {quoted}; expected {expected}")


# --- The OpenAPI document ---


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
    schemas = document["components"]["schemas"]
    schemas["Predict"] = {
        "anyOf": [
            _body_schema(name, inputs, by_row)
            for name, inputs in sorted(signatures.items())
            for by_row in (True, False)
        ]
    }
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


def _body_schema(name: str, inputs: Mapping[str, Input], by_row: bool) -> dict[str, Any]:
    tensors = {key: _tensor_schema(tensor, by_row) for key, tensor in inputs.items()}
    kinds = [{"type": "object", "required": sorted(tensors), "properties": tensors}]
    if by_row:
        kinds[0]["additionalProperties"] = False
    if len(inputs) == 1:
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


def _tensor_schema(tensor: Input, by_row: bool) -> dict[str, Any]:
    """Returns the JSON schema of a tensor, or with `by_row`, of one of its rows."""
    if tensor.dtype == "string":
        schema = {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/Base64"}]}
    elif tensor.dtype in _INTEGERS:
        limits = np.iinfo(tensor.dtype)
        schema = {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}
    else:
        schema = {"type": "boolean" if tensor.dtype == "bool" else "number"}
    if tensor.shape is None:
        return {"anyOf": [schema, {"type": "array"}]}
    for size in reversed(tensor.shape[int(by_row) :]):
        schema = {"type": "array", "items": schema}
        if size is not None:
            schema |= {"minItems": size, "maxItems": size}
    return schema
