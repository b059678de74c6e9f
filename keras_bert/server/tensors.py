"""Converts JSON values to arrays and back, with the checks and formats of TensorFlow Serving.

dtypes have TensorFlow's names (string, int32, float, ...); strings are bytes in object arrays. JSON
values come from `json_text.parse_object`, which returns a list of numbers as an array [N]. Each
such array is checked and converted as a whole.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_bert.server.errors import RestError, bad_request
from keras_bert.server.json_text import format_json

_MAX_RANK = 32  # NumPy allows 64; JSON lists may be nested deeper.
_INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint32", "uint64")
_FLOATS = {"float": np.float32, "double": np.float64}
_KINDS = {dict: "Object", list: "Array", bytes: "String", int: "Number", float: "Number"}
_KINDS |= {np.ndarray: "Array", type(None): "Null"}
MAX_STEP = 1 << 14  # maximum number of values that are converted to JSON in one step


def read_value(value: Any, dtype: str, flat: list) -> tuple[int, ...]:
    """Converts the values of a scalar or of nested lists to a dtype, and returns the shape.

    The converted values are appended to `flat`: scalars, and an array [N] for each list of numbers.

    Raises:
        RestError: the lists are ragged, or a value cannot be converted.
    """
    shape = []
    first = value
    while isinstance(first, list | np.ndarray):
        shape.append(len(first))
        if len(shape) > _MAX_RANK:
            raise _too_deep(_MAX_RANK, _MAX_RANK)
        if not shape[-1]:
            break
        first = first[0]
    _append_values(value, 0, tuple(shape), _converter(dtype), flat)
    return tuple(shape)


def make_array(flat: list, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Creates an array of a shape and dtype from the values in `flat`, filled by `read_value`."""
    kind = object if dtype == "string" else _FLOATS.get(dtype, dtype)
    if not any(isinstance(part, np.ndarray) for part in flat):
        return np.array(flat, kind).reshape(shape)
    parts = [np.atleast_1d(np.asarray(part, kind)) for part in flat]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)).reshape(shape)


def is_named(value: Any) -> bool:
    """Returns whether a JSON value is an object of named tensors, and not {"b64": string}."""
    return isinstance(value, dict) and not _is_base64(value)


def write_json(array: np.ndarray, as_base64: bool) -> Iterator[bytes]:
    """Yields the JSON text of an array in parts, each converted in a few milliseconds.

    With `as_base64`, strings are written as {"b64": ...}. Otherwise, bytes that are not UTF-8
    become U+FFFD.

    Raises:
        RestError: JSON cannot represent the array's dtype.
    """
    if array.size <= MAX_STEP:
        yield format_compact(write_value(array, as_base64))
        return
    rows = max(1, MAX_STEP * len(array) // array.size)
    for start in range(0, len(array), rows):
        yield b"," if start else b"["
        part = array[start : start + rows]
        if part.size <= MAX_STEP:
            yield format_compact(write_value(part, as_base64))[1:-1]
        else:
            yield from write_json(part[0], as_base64)
    yield b"]"


def format_compact(value: Any) -> bytes:
    """Formats a value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def write_value(array: np.ndarray, as_base64: bool) -> Any:
    """Converts an array to nested lists of JSON values, as `write_json` does."""
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
    value: Any, level: int, shape: tuple[int, ...], converter: "_Converter", flat: list
) -> None:
    rank = len(shape)
    if not isinstance(value, list | np.ndarray):
        if level != rank:
            raise _wrong_level(value, level, rank)
        flat.append(converter.convert(value))
        return
    if level >= rank:
        raise _too_deep(level, rank)
    if len(value) != shape[level]:
        raise bad_request(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    if isinstance(value, list):
        for element in value:
            _append_values(element, level + 1, shape, converter, flat)
    elif level + 1 != rank:
        raise _wrong_level(value[0].item(), level + 1, rank)
    else:
        flat.append(converter.convert_numbers(value))


def _wrong_level(value: Any, level: int, rank: int) -> RestError:
    return bad_request(
        f"JSON Value: {format_json(value)} found at incorrect level: {level + 1} "
        f"in the JSON DOM. Expected at level: {rank}"
    )


def _too_deep(level: int, rank: int) -> RestError:
    return bad_request(f"Encountered list at unexpected level: {level} expected < {rank}")


class _Converter:
    """Checks JSON values and converts them to strings; subclasses convert to other dtypes."""

    dtype = "string"

    def convert(self, value: Any) -> Any:
        """Converts a scalar; raises a RestError if it has another type or is out of range."""
        return _string(value)

    def convert_numbers(self, values: np.ndarray) -> np.ndarray:
        """Converts N numbers to the input's dtype; raises a RestError for the first invalid one."""
        for start in range(0, len(values), MAX_STEP):
            part = values[start : start + MAX_STEP]
            wrong = np.flatnonzero(self._find_wrong(part))
            if len(wrong):
                self.convert(part[wrong[0]].item())  # Raises the error.
        self.convert(values[0].item())  # Raises an error for a float without a fraction.
        return values.astype(_FLOATS.get(self.dtype, self.dtype), copy=False)

    def _find_wrong(self, values: np.ndarray) -> np.ndarray:
        return np.ones(len(values), bool)


class _Booleans(_Converter):
    dtype = "bool"

    def convert(self, value: Any) -> Any:
        if type(value) is not bool:
            raise _wrong_type(value, self.dtype)
        return value


class _Integers(_Converter):
    def __init__(self, dtype: str):
        self.dtype = dtype
        self._low, self._high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def convert(self, value: Any) -> Any:
        if type(value) is not int or not self._low <= value <= self._high:
            raise _wrong_type(value, self.dtype)
        return value

    def _find_wrong(self, values: np.ndarray) -> np.ndarray:
        if values.dtype == np.float64:  # At least one number is not an integer.
            return values != np.floor(values)
        return (values < self._low) | (values > self._high)


class _Floats(_Converter):
    def __init__(self, dtype: str):
        self.dtype = dtype
        self._largest = float(np.finfo(_FLOATS[dtype]).max)

    def convert(self, value: Any) -> Any:
        if type(value) not in (int, float):
            raise _wrong_type(value, self.dtype)
        if self._largest < abs(value) < float("inf"):
            raise bad_request(
                f"Cannot convert JSON value: {format_json(value)} to {self.dtype} "
                "without loss of precision."
            )
        return value

    def _find_wrong(self, values: np.ndarray) -> np.ndarray:
        return np.isfinite(values) & ((values > self._largest) | (values < -self._largest))


def _converter(dtype: str) -> _Converter:
    if dtype == "string":
        return _Converter()
    if dtype == "bool":
        return _Booleans()
    if dtype in _INTEGERS:
        return _Integers(dtype)
    if dtype in _FLOATS:
        return _Floats(dtype)
    raise RestError(501, f"Conversion of JSON Value to type: {dtype}")


def _string(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, dict):
        raise _wrong_type(value, "string")
    if not _is_base64(value):
        raise bad_request(
            f"JSON Value: {format_json(value)} not formatted correctly for base64 data"
        )
    encoded = value["b64"].rstrip(b"=")
    try:
        return base64.b64decode(encoded + b"=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("Unable to base64 decode") from None


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), bytes)


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
