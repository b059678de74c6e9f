"""Decodes the predict requests of TensorFlow Serving's REST API, and encodes the responses.

The row format is {"instances": [...]} -> {"predictions": [...]}, the columnar format {"inputs":
{...}} -> {"outputs": {...}}. Tensors become arrays [B, ...], with strings as bytes in object
arrays. Statuses and messages are those of TensorFlow Serving.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_bert.errors import shorten
from keras_bert.server.errors import RestError, bad_request
from keras_bert.server.json_text import format_json, parse_object
from keras_bert.server.tensors import (
    MAX_STEP,
    format_compact,
    is_named,
    make_array,
    read_value,
    write_json,
    write_value,
)

DEFAULT_SIGNATURE = "serving_default"
# Maximum number of bytes of a requested signature's name that are compared.
_MAX_NAME = 1000

Arrays = dict[str, np.ndarray]


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


def decode_call(body: bytes, signatures: Mapping[str, Mapping[str, Input]], max_rows: int) -> Call:
    """Decodes the body of a predict request, for a model with these signatures.

    `signatures` is {signature: {input name: `Input`}}. A request in row format may have at most
    `max_rows` rows.

    Raises:
        RestError: the request is invalid; status 400 and TensorFlow Serving's message.
    """
    document = parse_object(body)
    name = document.get("signature_name", b"")
    if not isinstance(name, bytes):
        raise bad_request(
            f"JSON Value: {format_json(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    name = name[:_MAX_NAME].decode("utf-8", "replace") or DEFAULT_SIGNATURE
    if name not in signatures:
        raise bad_request(f'Serving signature name: "{shorten(name)}" not found in signature def')
    expected = signatures[name]
    if not expected:
        raise bad_request(f"Failed to get input map for signature: {name}")
    by_row = "instances" in document
    if by_row and "inputs" in document:
        raise bad_request(
            f"JSON Value: {format_json(document)} Not formatted correctly expecting only one of "
            "'inputs' or 'instances' keys to exist "
        )
    if by_row:
        inputs = _decode_rows(document, expected, max_rows)
    elif "inputs" in document:
        inputs = _decode_columns(document["inputs"], expected)
    else:
        raise bad_request("Missing 'inputs' or 'instances' key")
    for key, array in inputs.items():
        _check_shape(key, array.shape, expected[key].shape)
    return Call(name, inputs, by_row)


def encode_call(call: Call, outputs: Arrays) -> Iterator[bytes]:
    """Encodes the response to a request, as `encode_outputs` does."""
    return encode_outputs(outputs, call.by_row)


def encode_outputs(outputs: Arrays, by_row: bool) -> Iterator[bytes]:
    """Encodes the response to a predict request in row or columnar format, as JSON.

    Yields the text in parts, each made in a few milliseconds, so that other threads run in the
    meantime. Bytes that are not UTF-8 become U+FFFD, except in outputs named `*_bytes`, which are
    encoded in base64.

    Raises:
        RestError: status 400, JSON cannot represent the dtype of an output; or, in row format, an
            output has no rows, or the outputs have different numbers of rows.
    """
    rows = _count_rows(outputs) if by_row else 0
    yield b'{"predictions":' if by_row else b'{"outputs":'
    if len(outputs) == 1:
        ((name, array),) = outputs.items()
        yield from _encode(name, array)
    elif not by_row:
        yield from _encode_object(outputs)
    else:
        step = max(1, MAX_STEP * rows // max(1, sum(array.size for array in outputs.values())))
        for start in range(0, rows, step):
            yield b"," if start else b"["
            part = {name: array[start : start + step] for name, array in outputs.items()}
            yield from _encode_rows(part)
        yield b"]"
    yield b"}"


def _count_rows(outputs: Arrays) -> int:
    rows = 0
    for name, array in sorted(outputs.items()):
        if not array.ndim:
            raise bad_request(f"Tensor name: {name} has no shape information ")
        if len(array) < 1:
            raise bad_request(f"Tensor name: {name} has invalid batch size: {len(array)}")
        if rows and len(array) != rows:
            raise bad_request(
                f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {rows}"
            )
        rows = len(array)
    return rows


def _encode_rows(outputs: Arrays) -> Iterator[bytes]:
    """Encodes a few rows as JSON objects with commas between them, without enclosing brackets."""
    names = sorted(outputs)
    if sum(array.size for array in outputs.values()) > MAX_STEP:  # One wide row.
        yield from _encode_object({name: array[0] for name, array in outputs.items()})
        return
    columns = [write_value(outputs[name], _is_base64(name)) for name in names]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    yield format_compact(rows)[1:-1]


def _encode_object(outputs: Arrays) -> Iterator[bytes]:
    for index, name in enumerate(sorted(outputs)):
        yield (b"," if index else b"{") + format_compact(name) + b":"
        yield from _encode(name, outputs[name])
    yield b"}"


def _encode(name: str, array: np.ndarray) -> Iterator[bytes]:
    return write_json(array, _is_base64(name))


def _is_base64(name: str) -> bool:
    return name.endswith("_bytes")


def _decode_rows(document: dict[str, Any], expected: Mapping[str, Input], max_rows: int) -> Arrays:
    rows = document["instances"]
    if not isinstance(rows, list | np.ndarray):
        raise bad_request(
            f"JSON Value: {format_json(document)} Excepting 'instances' to be an list/array"
        )
    if not len(rows):
        raise bad_request(f"JSON Value: {format_json(document)} No values in 'instances' array")
    if len(rows) > max_rows:
        raise too_many_rows(len(rows), max_rows)
    if isinstance(rows, np.ndarray):
        rows = rows.tolist()
    if not isinstance(rows[0], dict) and len(expected) > 1:
        raise bad_request(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    named = is_named(rows[0])
    only = next(iter(expected))
    flat: dict[str, list] = {name: [] for name in expected}
    shapes: dict[str, tuple[int, ...]] = {}
    for number, row in enumerate(rows):
        if is_named(row) != named:
            got = "object but got list" if named else "value/list but got object"
            raise bad_request(f"Expecting {got} at item {number} of input list")
        for name, value in row.items() if named else [(only, row)]:
            try:
                _add_row(name, value, expected, flat, shapes)
            except RestError as error:
                key = f" key: {shorten(name)}" if named else ""
                raise bad_request(
                    f"Failed to process element: {number}{key} of 'instances' list. "
                    f"Error: INVALID_ARGUMENT: {error.message}"
                ) from None
        if named and row.keys() != expected.keys():
            raise bad_request(
                f"Failed to process element: {number} of 'instances' list. JSON object: "
                f"{format_json(row)} must only have keys: {','.join(sorted(expected))}"
            )
    return {
        name: make_array(flat[name], (len(rows), *shapes[name]), expected[name].dtype)
        for name in expected
    }


def _add_row(
    name: str,
    value: Any,
    expected: Mapping[str, Input],
    flat: dict[str, list],
    shapes: dict[str, tuple[int, ...]],
) -> None:
    if name not in expected:
        raise bad_request(f"JSON object: does not have named input: {shorten(name)}")
    before = len(flat[name])
    shape = read_value(value, expected[name].dtype, flat[name])
    first = shapes.setdefault(name, shape)
    if shape == first:
        return
    size, got = int(np.prod(first)), sum(np.size(part) for part in flat[name][before:])
    if size != got:
        raise bad_request(f"Expecting tensor size: {size} but got: {got}")
    raise bad_request(f"Expecting shape {_shape_text(first)} but got: {_shape_text(shape)}")


def _decode_columns(value: Any, expected: Mapping[str, Input]) -> Arrays:
    if is_named(value):
        for name in expected:
            if name not in value:
                raise bad_request(f"Missing named input: {name} in 'inputs' object.")
        columns = {name: value[name] for name in expected}
    elif len(expected) > 1:
        raise bad_request(
            "inputs is a plain value/list, but expecting an object as multiple input tensors "
            "required as per tensorinfo_map"
        )
    else:
        columns = {next(iter(expected)): value}
    arrays = {}
    for name, column in columns.items():
        flat = []
        shape = read_value(column, expected[name].dtype, flat)
        arrays[name] = make_array(flat, shape, expected[name].dtype)
    return arrays


def too_many_rows(rows: int, limit: int) -> RestError:
    """Creates the error for a request with too many rows."""
    return bad_request(f"The request has {rows} rows; expected at most {limit}")


def _check_shape(
    name: str, shape: tuple[int, ...], expected: tuple[int | None, ...] | None
) -> None:
    if expected is None:
        return
    fits = len(shape) == len(expected) and all(
        size is None or got == size for got, size in zip(shape, expected, strict=True)
    )
    if not fits:
        raise bad_request(
            f"Input {name} has shape {_shape_text(shape)}; expected {_shape_text(expected)}"
        )


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return "[" + ",".join("-1" if size is None else str(size) for size in shape) + "]"
