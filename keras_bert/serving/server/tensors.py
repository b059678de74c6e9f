"""Converts JSON values to arrays and back, with the checks and formats of TensorFlow Serving.

dtypes have TensorFlow's names (string, int32, float, ...); strings are bytes in object arrays.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_bert.serving.server.errors import RestError, bad_request
from keras_bert.serving.server.json_text import format_json

_MAX_RANK = 32  # NumPy allows 64; JSON lists may be nested deeper.
_INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint32", "uint64")
_FLOATS = {"float": np.float32, "double": np.float64}
_KINDS = {dict: "Object", list: "Array", str: "String", int: "Number", float: "Number"}
_KINDS |= {type(None): "Null"}


def read_value(value: Any, dtype: str, flat: list) -> tuple[int, ...]:
    """Appends the values of a scalar or nested lists to `flat` and returns the shape.

    Raises:
        RestError: the lists are ragged, or a value has another type.
    """
    shape = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if len(shape) > _MAX_RANK:
            raise _too_deep(_MAX_RANK, _MAX_RANK)
        if not first:
            break
        first = first[0]
    _append_values(value, 0, tuple(shape), _converter(dtype), flat)
    return tuple(shape)


def make_array(flat: list, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Makes an array from flat values; strings become bytes in an object array."""
    kind = object if dtype == "string" else _FLOATS.get(dtype, dtype)
    return np.array(flat, kind).reshape(shape)


def is_named(value: Any) -> bool:
    """Returns whether a JSON value is an object of named tensors, not bytes in base64."""
    return isinstance(value, dict) and not _is_base64(value)


def write_value(array: np.ndarray, as_base64: bool) -> Any:
    """Converts an array to nested lists of JSON values, or to a scalar if it has no dimensions.

    Strings are written as {"b64": ...} with as_base64; otherwise bytes that are not UTF-8 become
    U+FFFD.

    Raises:
        RestError: JSON cannot represent the array's type.
    """
    if array.dtype == object:
        write = _encode_base64 if as_base64 else _decode_text
        flat = [write(value) for value in array.ravel().tolist()]
    elif array.dtype == np.float32:
        flat = _short_decimals(array.ravel())
    elif array.dtype == np.float64 or array.dtype.kind in "iub":
        return array.tolist()
    else:
        raise bad_request(f"Failed to write JSON value for tensor type: {array.dtype}")
    nested = np.empty(array.size, object)
    nested[:] = flat
    return nested.reshape(array.shape).tolist()


def _append_values(
    value: Any, level: int, shape: tuple[int, ...], convert: Callable[[Any], Any], flat: list
) -> None:
    rank = len(shape)
    if not isinstance(value, list):
        if level != rank:
            raise bad_request(
                f"JSON Value: {format_json(value)} found at incorrect level: {level + 1} "
                f"in the JSON DOM. Expected at level: {rank}"
            )
        flat.append(convert(value))
        return
    if level >= rank:
        raise _too_deep(level, rank)
    if len(value) != shape[level]:
        raise bad_request(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    for element in value:
        _append_values(element, level + 1, shape, convert, flat)


def _too_deep(level: int, rank: int) -> RestError:
    return bad_request(f"Encountered list at unexpected level: {level} expected < {rank}")


def _converter(dtype: str) -> Callable[[Any], Any]:
    """Returns a function that checks one JSON value and converts it to a dtype."""
    if dtype == "string":
        return _string
    largest = float("inf")
    if dtype == "bool":
        kinds, low, high = (bool,), False, True
    elif dtype in _INTEGERS:
        kinds, low, high = (int,), int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    elif dtype in _FLOATS:
        kinds, low, high = (int, float), -largest, largest
        largest = float(np.finfo(_FLOATS[dtype]).max)
    else:
        raise RestError(501, f"Conversion of JSON Value to type: {dtype}")

    def convert(value: Any) -> Any:
        if type(value) not in kinds or value < low or value > high:
            raise _wrong_type(value, dtype)
        if largest < abs(value) < float("inf"):
            raise bad_request(
                f"Cannot convert JSON value: {format_json(value)} to {dtype} "
                "without loss of precision."
            )
        return value

    return convert


def _string(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if not isinstance(value, dict):
        raise _wrong_type(value, "string")
    if not _is_base64(value):
        raise bad_request(
            f"JSON Value: {format_json(value)} not formatted correctly for base64 data"
        )
    encoded = value["b64"].rstrip("=")
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("Unable to base64 decode") from None


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def _wrong_type(value: Any, dtype: str) -> RestError:
    kind = str(value) if isinstance(value, bool) else _KINDS[type(value)]
    return bad_request(
        f"JSON Value: {format_json(value)} Type: {kind} is not of expected type: {dtype}"
    )


def _short_decimals(flat: np.ndarray) -> list[float]:
    """Rounds float32 values to short decimals as TensorFlow Serving does: 0.2, not 0.200000003."""
    values = flat.tolist()
    short = [float(f"{value:.6g}") for value in values]
    with np.errstate(over="ignore"):
        longer = np.flatnonzero(np.array(short, np.float32) != flat)
    for index in longer.tolist():
        short[index] = float(f"{values[index]:.9g}")
    return short


def _decode_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _encode_base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode()}
