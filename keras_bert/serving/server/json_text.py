"""Parses a request body as a JSON object, with TensorFlow Serving's error messages.

Bytes that are not UTF-8 become surrogate escapes, so that `text.encode("utf-8", "surrogateescape")`
restores the bytes that the client sent.
"""

import json
import re
from typing import Any

from keras_bert.serving.server.errors import RestError, bad_request

_MAX_QUOTED = 200  # characters of a JSON value that an error quotes

# Messages of Python's parser -> those of RapidJSON, the parser of TensorFlow Serving.
_MESSAGES = {
    "Expecting value": "Invalid value.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
    "Illegal trailing comma before end of array": "Invalid value.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Invalid control character at": "Invalid encoding in string.",
    "Extra data": "The document root must not be followed by other values.",
}
_LONE_SURROGATE = "The surrogate pair in string is invalid."
_STRING_OR_BRACKET = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\]]', re.DOTALL)
# A complete pair is matched first, so that group 1 matches only lone surrogates.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """Parses a UTF-8 body, with or without a byte order mark, that must be a JSON object.

    NaN, Infinity and -Infinity are accepted as numbers.

    Raises:
        RestError: the body is not JSON, or not an object.
    """
    if not body:
        raise bad_request("JSON Parse error: The document is empty")
    text = body.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _parse_error(text, _rapidjson_message(error), _rapidjson_position(error)) from None
    except RecursionError:
        raise _parse_error(text, "Nested too deeply.", 0) from None
    except ValueError:  # An integer with thousands of digits.
        raise _parse_error(text, "Number too big to be stored in double.", 0) from None
    lone = _lone_surrogate(text)
    if lone is not None:
        raise _parse_error(text, _LONE_SURROGATE, lone)
    if not isinstance(value, dict):
        raise bad_request(f"JSON Value: {format_json(value)} Is not object")
    return value


def format_json(value: Any) -> str:
    """Formats a JSON value for an error message, as indented JSON of limited length."""
    text = ""
    try:
        for part in json.JSONEncoder(indent=4, ensure_ascii=False).iterencode(value):
            text += part[: _MAX_QUOTED + 1]
            if len(text) > _MAX_QUOTED:
                break
    except RecursionError:
        return "..."
    return text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "..."


def _parse_error(text: str, message: str, position: int) -> RestError:
    offset = len(text[:position].encode("utf-8", "surrogateescape"))
    return bad_request(f"JSON Parse error: {message} at offset: {offset}")


def _rapidjson_message(error: json.JSONDecodeError) -> str:
    if not error.doc.strip(" \t\r\n"):
        return "The document is empty."
    if error.msg == "Expecting ',' delimiter":
        opened = _innermost(error.doc[: error.pos])
        if opened == "{":
            return "Missing a comma or } after an object member."
        return "Missing a comma or ] after an array element."
    return _MESSAGES.get(error.msg, error.msg + ".")


def _rapidjson_position(error: json.JSONDecodeError) -> int:
    # RapidJSON reports the end of the document, where it stops looking for the closing quote.
    return len(error.doc) if error.msg.startswith("Unterminated string") else error.pos


def _innermost(text: str) -> str:
    """Returns the innermost bracket that is open at the end of incomplete JSON."""
    opened = []
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "{[":
            opened.append(match[0])
        elif match[0] in "}]":
            opened.pop()
    return opened[-1]


def _lone_surrogate(text: str) -> int | None:
    if "\\ud" not in text and "\\uD" not in text:
        return None
    return next((match.start() for match in _ESCAPE.finditer(text) if match[1]), None)
