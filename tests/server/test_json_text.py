"""Bodies must be JSON objects; errors have RapidJSON's messages, as in TensorFlow Serving."""

import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from keras_bert.server.errors import RestError
from keras_bert.server.json_text import MAX_VALUES, format_json, parse_object

MEGABYTE = 1_000_000


def test_parses_objects_with_and_without_a_byte_order_mark():
    assert parse_object(b'\xef\xbb\xbf{"a": [1, "x", null]}') == {"a": [1, b"x", None]}
    assert parse_object(b'{"a": [NaN, -Infinity]}')["a"][1] == float("-inf")


def test_invalid_utf_8_bytes_are_kept():
    assert parse_object(b'{"a": "x\xff\xe2"}') == {"a": b"x\xff\xe2"}
    assert parse_object(b'{"a": "\\n\xff\xe2"}') == {"a": b"\n\xff\xe2"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The document is empty"),
        (b" \n", "The document is empty. at offset: 2"),
        (b"{", "Missing a name for object member. at offset: 1"),
        (b'{"a"}', "Missing a colon after a name of object member. at offset: 4"),
        (b'{"a": }', "Invalid value. at offset: 6"),
        (b'{"a": 1 2}', "Missing a comma or } after an object member. at offset: 8"),
        (b'{"a": [1 "]"]}', "Missing a comma or ] after an array element. at offset: 9"),
        (b'{"a": "x', "Missing a closing quotation mark in string. at offset: 8"),
        (b'{"a": "\\x"}', "Invalid escape character in string. at offset: 7"),
        (b'{"\xc3\xa4": ?}', "Invalid value. at offset: 7"),
        (b"{} {}", "The document root must not be followed by other values. at offset: 3"),
        (b'{"a": "\\ud800"}', "The surrogate pair in string is invalid. at offset: 7"),
        (b'{"a": "\\\\ud800 \\udc00"}', "The surrogate pair in string is invalid. at offset: 15"),
        (b'{"a": ' + b"9" * 5000 + b"}", "Number too big to be stored in double. at offset: 6"),
        (b'{"a": [1, 1e999]}', "Number too big to be stored in double. at offset: 10"),
        (b'{"a": [1, 1.]}', "Missing fraction part in number. at offset: 12"),
        (b'{"a": 1e+}', "Missing exponent in number. at offset: 9"),
        (b'{"a": [0, 01]}', "Missing a comma or ] after an array element. at offset: 11"),
        (b'{"a": [1, -]}', "Invalid value. at offset: 10"),
        (b'{"a": [1,]}', "Invalid value. at offset: 9"),
        (b'{"a": "\\u12"}', "Incorrect hex digit after \\u escape in string. at offset: 7"),
        (b'{"a": "\n"}', "Invalid encoding in string. at offset: 7"),
        (b"[" * 100_000, "Nested too deeply. at offset: 64"),
    ],
)
def test_invalid_json_is_rejected_with_rapidjson_messages(body: bytes, message: str):
    with pytest.raises(RestError) as error:
        parse_object(body)
    assert error.value.status == 400
    assert error.value.message == f"JSON Parse error: {message}"


def test_surrogate_pairs_become_one_character():
    assert parse_object(b'{"a": "\\ud83d\\ude00\\\\ud800"}') == {"a": "\U0001f600\\ud800".encode()}


def test_values_other_than_objects_are_rejected():
    with pytest.raises(RestError, match=r"JSON Value: \[\] Is not object"):
        parse_object(b"[]")


def test_long_values_are_truncated_in_errors():
    assert len(format_json(["x" * 1_000_000] * 10)) == 203
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert len(format_json(nested)) <= 203


def plain(value):
    """Converts parsed values to those of json.loads."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {name: plain(element) for name, element in value.items()}
    return value


# Integers in a list with floats become floats.
NUMBERS = strategies.integers(-(2**53), 2**53) | strategies.floats(allow_nan=False)
VALUES = strategies.recursive(
    NUMBERS
    | strategies.lists(NUMBERS)
    | strategies.lists(strategies.integers())
    | strategies.booleans()
    | strategies.text(),
    lambda inner: strategies.lists(inner) | strategies.dictionaries(strategies.text(), inner),
)


@pytest.mark.slow
@hypothesis.settings(
    max_examples=200,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[hypothesis.Phase.generate],
)
@hypothesis.given(
    VALUES, strategies.booleans(), strategies.sampled_from([None, 1]), strategies.text(max_size=3)
)
def test_values_are_those_of_the_standard_library(value, as_ascii, indent, damage):
    try:
        text = json.dumps({"a": value}, ensure_ascii=as_ascii, indent=indent)
        body = text.encode()
    except UnicodeEncodeError:
        hypothesis.reject()
    assert plain(parse_object(body)) == json.loads(text)
    # A body with an error is rejected by both parsers.
    middle = len(text) // 2
    damaged = (text[:middle] + damage + text[middle + 1 :]).encode("utf-8", "replace")
    try:
        expected = json.loads(damaged)
        assert isinstance(expected, dict)
        json.dumps(expected, ensure_ascii=False).encode()  # Fails for a lone surrogate.
    except (ValueError, AssertionError):
        with pytest.raises(RestError):
            parse_object(damaged)
    else:
        assert plain(parse_object(damaged)) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b'{"instances": [' + b"[]," * 700_000 + b"[]]}",
        b'{"instances": [' + b'{"a":0},' * 250_000 + b"{}]}",
        b'{"instances": [' + b'"ab",' * 400_000 + b'""]}',
        b'{"instances": [' + b'1,"",' * 400_000 + b'""]}',
        b'{"instances": [' + b"[1]," * 500_000 + b'""]}',
        b'{"instances": [' + b"99999999999999999999," * 300_000 + b"1]}",
    ],
    ids=["lists", "objects", "strings", "mixed", "short lists", "large integers"],
)
def test_number_of_values_is_limited(body):
    with pytest.raises(RestError, match=f"has more than {MAX_VALUES} strings, lists, objects"):
        parse_object(body)
