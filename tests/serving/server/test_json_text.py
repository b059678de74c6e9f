"""Bodies must be JSON objects; errors have RapidJSON's messages, as in TensorFlow Serving."""

import pytest

from keras_bert.serving.server.errors import RestError
from keras_bert.serving.server.json_text import format_json, parse_object


def test_parses_objects_with_and_without_a_byte_order_mark():
    assert parse_object(b'\xef\xbb\xbf{"a": [1, "x", null]}') == {"a": [1, "x", None]}
    assert parse_object(b'{"a": [NaN, -Infinity]}')["a"][1] == float("-inf")


def test_invalid_utf_8_bytes_are_kept():
    text = parse_object(b'{"a": "x\xff\xe2"}')["a"]
    assert text.encode("utf-8", "surrogateescape") == b"x\xff\xe2"


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
        (b'{"a": ' + b"9" * 5000 + b"}", "Number too big to be stored in double. at offset: 0"),
        (b"[" * 100_000, "Nested too deeply. at offset: 0"),
    ],
)
def test_invalid_json_is_rejected_with_rapidjson_messages(body: bytes, message: str):
    with pytest.raises(RestError) as error:
        parse_object(body)
    assert error.value.status == 400
    assert error.value.message == f"JSON Parse error: {message}"


def test_surrogate_pairs_become_one_character():
    assert parse_object(b'{"a": "\\ud83d\\ude00\\\\ud800"}') == {"a": "\U0001f600\\ud800"}


def test_values_other_than_objects_are_rejected():
    with pytest.raises(RestError, match=r"JSON Value: \[\] Is not object"):
        parse_object(b"[]")


def test_long_values_are_truncated_in_errors():
    assert len(format_json(["x" * 1_000_000] * 10)) == 203
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert len(format_json(nested)) <= 203
