"""Converts request bodies to arrays, and arrays to responses.

The JSON is that of TensorFlow Serving; api_formats.py has the formats of other APIs. The row format
is {"instances": [...]} -> {"predictions": [...]}, the columnar format {"inputs": {...}} ->
{"outputs": {...}}. The inputs alone, such as {"text": "..."}, are one row of the row format.
Tensors become arrays [B] or [B, S], with strings as bytes in object arrays; bytes that are not a
UTF-8 text are sent as {"b64": "..."}.

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
TOKENIZE = "tokenize"  # a function of the SavedModel that is not one of its signatures
TOKENIZE_SIGNATURE = {
    TOKENIZE: {
        "inputs": {"text": ["string", [-1]]},
        "outputs": {name: ["int32", [-1, -1]] for name in ("ids", "starts", "stops")},
    }
}
_MAX_BRACKETS = 1 << 17  # maximum number of lists and objects in a body, which take 0.1 s
_STEP = 1 << 14  # number of values that are formatted in one step
TRUNCATED = "truncated"  # the output with whether tokens of each text were removed
# Outputs that are -1 in the padding of rows with fewer entities or masks than the longest row.
_PADDED_WITH_MINUS_ONE = ("starts", "token_ids")
_SCHEMA_FILE = Path(__file__).with_name("openapi.json")
# Method -> the statuses of errors in the OpenAPI document.
_ERRORS = {"get": ["400", "403", "404", "503"]}
_ERRORS["post"] = [*_ERRORS["get"], "408", "413", "415", "504"]

Arrays = dict[str, np.ndarray]


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
    """Parses a body that must be a JSON object in UTF-8, with or without a byte order mark."""
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


def decode_call(body: bytes, export: Mapping[str, Any]) -> Call:
    """Decodes the body of a predict request, for a model with this export.json."""
    document, signatures = parse_object(body), export["signatures"]
    name = document.get("signature_name", "") or DEFAULT_SIGNATURE
    if not isinstance(name, str) or name not in signatures:
        raise RestError(
            f"signature_name: {describe(name)}; expected one of {', '.join(sorted(signatures))}"
        )
    specs = signatures[name]["inputs"]
    row = {key: value for key, value in document.items() if key != "signature_name"}
    if row.keys() == specs.keys():
        document = {"instances": [row]}
    by_row = "instances" in document
    if by_row == ("inputs" in document):
        raise RestError(
            "The request body must have either 'instances' or 'inputs', or for one row only "
            f"{', '.join(sorted(specs))}"
        )
    if by_row:
        columns = _columns_of_rows(document["instances"], specs)
    else:
        columns = _columns(document["inputs"], specs)
    inputs = {key: to_array(columns[key], key, *spec) for key, spec in specs.items()}
    if len({len(array) for array in inputs.values()}) > 1:
        counts = ", ".join(f"{key} has {len(array)}" for key, array in inputs.items())
        raise RestError(f"Inputs must have equal numbers of rows: {counts}")
    as_rows = partial(encode_rows, labels=export.get("labels") or ())
    return Call(name, inputs, as_rows if by_row else encode_columns)


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
    """Converts nested lists of strings or integers to an array, for the input with this name."""
    sizes, leaves = [], [value]
    for _ in shape:
        if not all(isinstance(leaf, list) and len(leaf) == len(leaves[0]) for leaf in leaves):
            raise RestError(f"{name}: expected lists of equal length, {len(shape)} deep")
        sizes.append(len(leaves[0]) if leaves else 0)
        leaves = [element for leaf in leaves for element in leaf]
    try:
        return convert(leaves, dtype).reshape(sizes)
    except (TypeError, OverflowError):
        wrong = next(i for i, leaf in enumerate(leaves) if not _fits(leaf, dtype))
        position = "".join(f"[{int(index)}]" for index in np.unravel_index(wrong, sizes))
        kind = f"a number of type {dtype}"
        if dtype == "string":
            kind = 'a string, or bytes as {"b64": string in base 64}'
        raise RestError(f"{name}{position}: {describe(leaves[wrong])}; expected {kind}") from None


def convert(values: list, dtype: str) -> np.ndarray:
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
        convert([value], dtype)
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


def encode_rows(outputs: Arrays, labels: Sequence[str] = ()) -> Iterator[bytes]:
    """Encodes outputs as {"predictions": [row, ...]}; a row of a single output has no name.

    Bytes that are not UTF-8 become U+FFFD. Lists of entities and masks have no padding. A row with
    the `probabilities` of all `labels` also has `classes`, the most probable first.
    """
    yield b'{"predictions":'
    if len(outputs) == 1:
        yield from encode_array(*outputs.values())
        yield b"}"
        return
    counts = _list_lengths(outputs)
    has_classes = outputs.get("probabilities", np.empty(0)).shape[1:] == (len(labels),)
    rows = len(next(iter(outputs.values())))
    step = max(1, _STEP * rows // max(1, sum(array.size for array in outputs.values())))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        columns = {name: _json_values(array[part]) for name, array in outputs.items()}
        if counts is not None:
            for name in (name for name, array in outputs.items() if array.ndim > 1):
                columns[name] = [v[:n] for v, n in zip(columns[name], counts[part], strict=True)]
        if has_classes:
            columns["classes"] = [_classes(labels, row) for row in outputs["probabilities"][part]]
        names, values = zip(*sorted(columns.items()), strict=True)
        objects = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        yield (b"," if start else b"[") + dumps(objects)[1:-1]
    yield b"]}"


def _list_lengths(outputs: Arrays) -> np.ndarray | None:
    """Returns the number of entities or masks of each row; None if the rows have no such lists."""
    for name in _PADDED_WITH_MINUS_ONE:
        if name in outputs:
            values = outputs[name]
            return (values >= 0).any(axis=tuple(range(2, values.ndim))).sum(axis=1)
    return None


def _classes(labels: Sequence[str], probabilities: np.ndarray) -> list[dict[str, Any]]:
    order = np.argsort(-probabilities, kind="stable")
    return [{"label": labels[index], "score": probabilities[index]} for index in order]


def encode_columns(outputs: Arrays) -> Iterator[bytes]:
    """Encodes outputs as {"outputs": {name: rows}}; a single output has no name."""
    yield b'{"outputs":'
    if len(outputs) == 1:
        yield from encode_array(*outputs.values())
    else:
        for index, name in enumerate(sorted(outputs)):
            yield (b"," if index else b"{") + dumps(name) + b":"
            yield from encode_array(outputs[name])
        yield b"}"
    yield b"}"


def encode_array(array: np.ndarray) -> Iterator[bytes]:
    """Yields the JSON text of an array of at least one dimension in parts."""
    step = max(1, _STEP * len(array) // max(1, array.size))
    for start in range(0, max(1, len(array)), step):
        yield (b"," if start else b"[") + dumps(_json_values(array[start : start + step]))[1:-1]
    yield b"]"


def _json_values(array: np.ndarray) -> Any:
    """Converts an array to values that `dumps` formats: an array, or nested lists."""
    if array.dtype != object:
        return np.ascontiguousarray(array)
    texts = np.empty(array.size, object)
    texts[:] = [value.decode("utf-8", "replace") for value in array.flat]
    return texts.reshape(array.shape).tolist()


def dumps(value: Any) -> bytes:
    """Formats a value, which may contain arrays, as JSON."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


# --- The OpenAPI document ---


def describe_routes(
    exports: Mapping[str, Mapping[str, Any]],
    formats: Mapping[str, Mapping[str, Any]],
    has_keys: bool = False,
) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of the server, from openapi.json.

    The response `default` of an operation in this file stands for all errors of its method.
    `exports` are the contents of export.json by the name of the model, and `formats` {path: {name
    of a model: its description}} for the paths of `FORMATS`. `has_keys` is whether requests need a
    key.
    """
    text, document = _SCHEMA_FILE.read_text("utf-8"), {}
    for index, (name, export) in enumerate(exports.items()):
        number = str(index or "")
        part = json.loads(text.replace("MODEL_NUMBER", number).replace("MODEL_NAME", quote(name)))
        part["components"]["schemas"][f"Predict{number}"] = {
            "anyOf": [
                _body_schema(signature, specs["inputs"], member)
                for signature, specs in sorted(export["signatures"].items())
                for member in ("instances", "inputs", "")
            ]
        }
        document = document or part
        document["paths"] |= part["paths"]
        for kind, components in part["components"].items():
            document["components"][kind] |= components
    for path, models in formats.items():
        if not models:
            del document["paths"][path]
            continue
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        request = body["schema"]["$ref"].rpartition("/")[2]
        members = document["components"]["schemas"][request]["properties"]
        members["model"]["enum"] = [*models] + [None] * ("null" in members["model"]["type"])
        if "dimensions" in members:
            sizes = {size for model in models.values() for size in model.sizes}
            members["dimensions"]["enum"] = [*sorted(sizes), None]
    for path in document["paths"].values():
        for method, statuses in _ERRORS.items():
            if method in path:
                responses = path[method]["responses"]
                error = responses.pop("default")
                responses |= dict.fromkeys(["401"] * has_keys + statuses, error)
    if has_keys:
        document["security"] = [{"key": []}]
        document["paths"]["/healthz"]["get"]["security"] = []
    return document


def _body_schema(name: str, specs: Mapping[str, Sequence], member: str) -> dict[str, Any]:
    """Returns the JSON schema of a body with rows in `member`; "" for the inputs of one row."""
    by_row, is_default = member != "inputs", name == DEFAULT_SIGNATURE
    tensors = {key: _tensor_schema(*spec, by_row) for key, spec in specs.items()}
    signature_name = {"signature_name": {"enum": [name, ""] if is_default else [name]}}
    required = [] if is_default else ["signature_name"]
    row = {"type": "object", "required": sorted(tensors), "properties": tensors}
    if by_row:
        row["additionalProperties"] = False
    if not member:
        row["required"] += required
        return row | {"properties": tensors | signature_name}
    kinds = [row, *(tensors.values() if len(specs) == 1 else ())]
    if by_row:  # The rows are either all objects of named inputs or all values of the only input.
        kinds = [{"type": "array", "minItems": 1, "items": kind} for kind in kinds]
    return {
        "type": "object",
        "required": [member, *required],
        "properties": signature_name | {member: {"anyOf": kinds}},
        "not": {"required": ["inputs" if by_row else "instances"]},
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
