"""Parses request bodies as JSON objects, with TensorFlow Serving's error messages.

`json.loads` keeps all other threads waiting until it ends, and makes Python objects that need up to
30 times the memory of the text. This parser works on the bytes in small steps, so that the event
loop runs in the meantime. Lists of numbers become arrays, and the number of all other values is
limited, so that the values need at most a few times the memory of the body.
"""

import json
import re
import sys
from typing import Any

import numpy as np

from keras_bert.errors import shorten
from keras_bert.server.errors import RestError, bad_request

MAX_VALUES = 1 << 18
_MAX_DEPTH = 64
_MAX_QUOTED = 200  # maximum number of characters of a JSON value in an error message
_MAX_NAME = 1000  # maximum number of bytes of the name of an object member

# Each pattern matches a limited part of the body, so that a match takes a few milliseconds.
_SPACE = re.compile(rb"[ \t\r\n]{0,65536}+")
_IN_LIST = rb"(?:-?[0-9][-+.0-9eE]{0,400}+(?![-+.0-9eE])|NaN|-?Infinity)"
_NUMBERS = re.compile(rb"%b(?:[ \t\r\n]{0,64}+,[ \t\r\n]{0,64}+%b){0,8191}+" % (_IN_LIST, _IN_LIST))
_NUMBER = re.compile(
    rb"-?(?:0|[1-9][0-9]{0,4000}+)(\.[0-9]{0,4000}+)?+([eE][-+]?+[0-9]{0,4000}+)?+"
)
_CONSTANT = re.compile(rb"true|false|null|NaN|-?Infinity")
# Characters, escapes, and pairs of escapes for one character outside the basic plane.
_TEXT = re.compile(
    rb'(?:[^"\\\x00-\x1f]{1,256}+|\\["\\/bfnrt]'
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}){0,512}+"
)
_UNICODE_ESCAPE = re.compile(rb"\\u[0-9a-fA-F]{4}")
_MAX_NUMBER = 4000  # maximum number of characters of a number


def parse_object(body: bytes) -> dict[str, Any]:
    """Parses a UTF-8 body, with or without a byte order mark, that must be a JSON object.

    Python's NaN, Infinity and -Infinity are accepted.

    Returns:
        The members of the object. Strings are bytes, which need not be valid UTF-8. A list
        of numbers is an array [N] of integers or float64. Empty lists, lists with integers
        beyond int64, and all other lists are Python lists.

    Raises:
        RestError: the body is not JSON, not an object, or has more than MAX_VALUES values and
            names, not counting the numbers in arrays.
    """
    if not body:
        raise bad_request("JSON Parse error: The document is empty")
    value = _Parser(body).document()
    if not isinstance(value, dict):
        raise bad_request(f"JSON Value: {format_json(value)} Is not object")
    return value


def format_json(value: Any) -> str:
    """Formats a value as indented JSON of limited length, for an error message."""
    text = ""
    encoder = json.JSONEncoder(indent=4, ensure_ascii=False, default=_format_other)
    try:
        for part in encoder.iterencode(value):
            text += part[: _MAX_QUOTED + 1]
            if len(text) > _MAX_QUOTED:
                break
    except RecursionError:
        return "..."
    return shorten(text, _MAX_QUOTED)


def _format_other(value: Any) -> Any:
    # `format_json` truncates the text of longer values anyway.
    if isinstance(value, bytes):
        return value[: 4 * _MAX_QUOTED].decode("utf-8", "replace")
    return value[:_MAX_QUOTED].tolist()


class _Parser:
    """Parses one JSON document.

    Methods for a value take its position in the body; they return the value and its end position.
    """

    def __init__(self, body: bytes):
        self._body = body
        self._values = 0

    def document(self) -> Any:
        position = self._skip_space(3 if self._body.startswith(b"\xef\xbb\xbf") else 0)
        if position == len(self._body):
            raise _error("The document is empty.", position)
        value, position = self._value(position, 0)
        position = self._skip_space(position)
        if position < len(self._body):
            raise _error("The document root must not be followed by other values.", position)
        return value

    def _at(self, position: int) -> bytes:
        return self._body[position : position + 1]

    def _skip_space(self, position: int) -> int:
        while self._at(position) in (b" ", b"\n", b"\r", b"\t"):
            position = _SPACE.match(self._body, position).end()
        return position

    def _count(self, values: int = 1) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise bad_request(
                f"The request body has more than {MAX_VALUES} strings, lists, objects and names, "
                "the maximum; send fewer rows per request"
            )

    def _value(self, position: int, depth: int) -> tuple[Any, int]:
        self._count()
        first = self._at(position)
        if first == b'"':
            return self._string(position)
        if first in (b"[", b"{"):
            if depth == _MAX_DEPTH:
                raise _error("Nested too deeply.", position)
            parse = self._list if first == b"[" else self._object
            return parse(position + 1, depth + 1)
        match = _CONSTANT.match(self._body, position)
        if match:
            return json.loads(match[0]), match.end()
        return self._number(position)

    def _object(self, position: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        position = self._skip_space(position)
        if self._at(position) == b"}":
            return members, position + 1
        while True:
            if self._at(position) != b'"':
                raise _error("Missing a name for object member.", position)
            self._count()
            start = position
            name, position = self._string(position)
            if len(name) > _MAX_NAME:
                raise _error(
                    f"Name of object member has {len(name)} bytes; expected at most {_MAX_NAME}.",
                    start,
                )
            position = self._skip_space(position)
            if self._at(position) != b":":
                raise _error("Missing a colon after a name of object member.", position)
            value, position = self._value(self._skip_space(position + 1), depth)
            members[name.decode("utf-8", "replace")] = value
            position = self._skip_space(position)
            following = self._at(position)
            if following == b"}":
                return members, position + 1
            if following != b",":
                raise _error("Missing a comma or } after an object member.", position)
            position = self._skip_space(position + 1)

    def _list(self, position: int, depth: int) -> tuple[list | np.ndarray, int]:
        numbers: _NumberList | None = None  # The elements, while all are numbers.
        values: list = []  # The elements, once one is not a number.
        position = self._skip_space(position)
        if self._at(position) == b"]":
            return values, position + 1
        while True:
            run, position = self._numbers(position)
            if isinstance(run, np.ndarray) and not values:
                numbers = numbers or _NumberList()
                numbers.append(run)
            else:
                if numbers:
                    values += self._scalars(numbers.array())
                    numbers = None
                if run is None:
                    value, position = self._value(position, depth)
                    values.append(value)
                else:
                    values += self._scalars(run)
            position = self._skip_space(position)
            following = self._at(position)
            if following == b"]":
                return numbers.array() if numbers else values, position + 1
            if following != b",":
                raise _error("Missing a comma or ] after an array element.", position)
            position = self._skip_space(position + 1)

    def _scalars(self, numbers: np.ndarray | list) -> list:
        self._count(len(numbers))
        return numbers.tolist() if isinstance(numbers, np.ndarray) else numbers

    def _numbers(self, position: int) -> tuple[np.ndarray | list | None, int]:
        """Parses consecutive numbers in a list; returns None if the next element is not a number.

        Numbers that do not fit in an array, such as large integers, are returned as a list.
        """
        match = _NUMBERS.match(self._body, position)
        if match is None:
            return None, position
        try:
            return _parse_numbers(match[0].decode()), match.end()
        except (ValueError, OverflowError):  # Some numbers are invalid or large.
            return self._separate_numbers(position, match.end())

    def _separate_numbers(self, position: int, end: int) -> tuple[list, int]:
        """Parses consecutive numbers in a list one by one, until `end` or an error."""
        numbers = []
        while True:
            number, position = self._value(position, _MAX_DEPTH)
            numbers.append(number)
            following = self._skip_space(position)
            if following >= end or self._at(following) != b",":
                return numbers, position
            position = self._skip_space(following + 1)

    def _number(self, position: int) -> tuple[int | float, int]:
        match = _NUMBER.match(self._body, position)
        if match is None:
            raise _error("Invalid value.", position)
        text, fraction, exponent = match[0], match[1], match[2]
        if fraction == b".":
            raise _error("Missing fraction part in number.", match.end(1))
        if exponent and not exponent[-1:].isdigit():
            raise _error("Missing exponent in number.", match.end())
        if len(text) <= _MAX_NUMBER:
            number = float(text) if fraction or exponent else int(text)
            if abs(number) <= sys.float_info.max:
                return number, match.end()
        raise _error("Number too big to be stored in double.", position)

    def _string(self, position: int) -> tuple[bytes, int]:
        parts = []
        position += 1
        while self._at(position) != b'"':
            match = _TEXT.match(self._body, position)
            if match.end() == position:
                raise self._string_error(position)
            text, position = match[0], match.end()
            if b"\\" in text:
                unescaped = json.loads('"' + text.decode("utf-8", "surrogateescape") + '"')
                text = unescaped.encode("utf-8", "surrogateescape")
            parts.append(text)
        return parts[0] if len(parts) == 1 else b"".join(parts), position + 1

    def _string_error(self, position: int) -> RestError:
        escape = self._body[position : position + 2]
        if len(escape) < 2 and escape in (b"", b"\\"):
            return _error("Missing a closing quotation mark in string.", len(self._body))
        if escape[:1] != b"\\":
            return _error("Invalid encoding in string.", position)
        if escape != b"\\u":
            return _error("Invalid escape character in string.", position)
        if _UNICODE_ESCAPE.match(self._body, position):
            return _error("The surrogate pair in string is invalid.", position)
        return _error("Incorrect hex digit after \\u escape in string.", position)


def _error(message: str, position: int) -> RestError:
    return bad_request(f"JSON Parse error: {message} at offset: {position}")


_INTEGERS = tuple(map(np.iinfo, (np.int8, np.int16, np.int32, np.int64)))


def _parse_numbers(text: str) -> np.ndarray:
    """Converts a text of numbers separated by commas to an array [N] of integers or float64.

    Integers have the smallest signed dtype that fits.

    Raises:
        ValueError, OverflowError: a number is invalid or large.
    """
    numbers = json.loads(f"[{text}]")
    if set(map(type, numbers)) == {int}:
        low, high = min(numbers), max(numbers)
        for limits in _INTEGERS:
            if limits.min <= low and high <= limits.max:
                return np.array(numbers, limits.dtype)
        raise OverflowError
    array = np.array(numbers, np.float64)
    if np.isinf(array).sum() != text.count("I"):  # The "I" of "Infinity".
        raise OverflowError
    return array


class _NumberList:
    """A list of numbers, to which arrays are appended, in little memory.

    A number needs at least two bytes of JSON, and at most eight in an array. A list of any length
    is therefore kept in one buffer that grows in place, with the smallest dtype for its integers.
    """

    def __init__(self) -> None:
        self._first: np.ndarray | None = None  # The only array so far.
        self._data = bytearray()  # All arrays, if there are several.
        self._dtype = np.dtype(np.int8)

    def append(self, numbers: np.ndarray) -> None:
        """Appends an array [N] of integers or float64."""
        if self._first is None:
            self._first, self._dtype = numbers, numbers.dtype
            return
        if not self._data:
            self._data += memoryview(self._first).cast("B")
        dtype = np.result_type(self._dtype, numbers.dtype)
        if dtype != self._dtype:
            narrow = self.array()
            self._data = bytearray(len(narrow) * dtype.itemsize)
            self._dtype = dtype
            self.array()[:] = narrow
        self._data += memoryview(numbers.astype(dtype, copy=False)).cast("B")

    def array(self) -> np.ndarray:
        """Returns all numbers as an array [N]; nothing may be appended while it is in use."""
        if self._data:
            return np.frombuffer(self._data, self._dtype)
        return np.empty(0, self._dtype) if self._first is None else self._first
