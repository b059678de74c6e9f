"""Decodes and encodes TensorFlow Serving's predict requests and responses.

A request {"instances": [...]} (row format) or {"inputs": {...}} (columnar format) becomes a `Call`:
the name of a signature and an array [B, ...] for each input, with strings as bytes in object
arrays. Output arrays [B, ...] become {"predictions": [...]} or {"outputs": {...}}. Status codes and
messages are those of TensorFlow Serving.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_bert.serving.server.errors import RestError, bad_request
from keras_bert.serving.server.json_text import format_json, parse_object
from keras_bert.serving.server.tensors import is_named, make_array, read_value, write_value

DEFAULT_SIGNATURE = "serving_default"

Arrays = dict[str, np.ndarray]


class Input(NamedTuple):
    """An input of a signature.

    Attributes:
        dtype: TensorFlow's name of the type: string, int32, float, ...
        shape: the dimensions, None for those of any size; None for any shape.
    """

    dtype: str
    shape: tuple[int | None, ...] | None


class Call(NamedTuple):
    """A predict request.

    Attributes:
        signature: the name of the signature.
        inputs: arrays by input name.
        by_row: whether the request is in row format, so that the response must be too.
    """

    signature: str
    inputs: Arrays
    by_row: bool


def decode_call(body: bytes | bytearray, signatures: Mapping[str, Mapping[str, Input]]) -> Call:
    """Decodes a predict request for {signature: {input: its dtype and shape}}.

    Raises:
        RestError: the request is invalid; status 400 and TensorFlow Serving's message.
    """
    document = parse_object(body)
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise bad_request(
            f"JSON Value: {format_json(document)} not formatted correctly. "
            "'signature_name' key must be a string value."
        )
    name = name or DEFAULT_SIGNATURE
    if name not in signatures:
        raise bad_request(f'Serving signature name: "{name}" not found in signature def')
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
        inputs = _decode_rows(document, expected)
    elif "inputs" in document:
        inputs = _decode_columns(document["inputs"], expected)
    else:
        raise bad_request("Missing 'inputs' or 'instances' key")
    for key, array in inputs.items():
        _check_shape(key, array.shape, expected[key].shape)
    return Call(name, inputs, by_row)


def encode_outputs(outputs: Arrays, by_row: bool) -> bytes:
    """Encodes the response to a predict request in row or columnar format, as JSON.

    Bytes that are not UTF-8 become U+FFFD, except in outputs named `*_bytes`, which are encoded in
    base64.

    Raises:
        RestError: status 400, the outputs do not have one row for each row of the inputs.
    """
    names = sorted(outputs)
    if not by_row:
        columns = {name: _values(name, outputs[name]) for name in names}
        return _to_json({"outputs": columns if len(names) > 1 else columns[names[0]]})
    rows = 0
    for name in names:
        array = outputs[name]
        if not array.ndim:
            raise bad_request(f"Tensor name: {name} has no shape information ")
        if len(array) < 1:
            raise bad_request(f"Tensor name: {name} has invalid batch size: {len(array)}")
        if rows and len(array) != rows:
            raise bad_request(
                f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {rows}"
            )
        rows = len(array)
    lists = [_values(name, outputs[name]) for name in names]
    if len(names) == 1:
        return _to_json({"predictions": lists[0]})
    return _to_json(
        {"predictions": [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]}
    )


def _decode_rows(document: dict[str, Any], expected: Mapping[str, Input]) -> Arrays:
    rows = document["instances"]
    if not isinstance(rows, list):
        raise bad_request(
            f"JSON Value: {format_json(document)} Excepting 'instances' to be an list/array"
        )
    if not rows:
        raise bad_request(f"JSON Value: {format_json(document)} No values in 'instances' array")
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
                key = f" key: {name}" if named else ""
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
        raise bad_request(f"JSON object: does not have named input: {name}")
    before = len(flat[name])
    shape = read_value(value, expected[name].dtype, flat[name])
    first = shapes.setdefault(name, shape)
    if shape == first:
        return
    size, got = int(np.prod(first)), len(flat[name]) - before
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


def _values(name: str, array: np.ndarray) -> Any:
    return write_value(array, as_base64=name.endswith("_bytes"))


def _to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
