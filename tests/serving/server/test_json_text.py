"""A body is a JSON object, or an error in RapidJSON's words, which are TensorFlow Serving's."""

import pytest

from keras_bert.serving.server.errors import RestError
from keras_bert.serving.server.json_text import parse_object, shown


def test_objects_with_and_without_a_byte_order_mark():
    assert parse_object(b'\xef\xbb\xbf{"a": [1, "x", null]}') == {"a": [1, "x", None]}
    assert parse_object(b'{"a": [NaN, -Infinity]}')["a"][1] == float("-inf")


def test_bytes_that_are_not_utf_8_pass_through():
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
def test_what_is_not_json(body: bytes, message: str):
    with pytest.raises(RestError) as error:
        parse_object(body)
    assert error.value.status == 400
    assert error.value.message == f"JSON Parse error: {message}"


def test_whole_surrogate_pairs_are_one_character():
    assert parse_object(b'{"a": "\\ud83d\\ude00\\\\ud800"}') == {"a": "\U0001f600\\ud800"}


def test_other_values_than_objects():
    with pytest.raises(RestError, match=r"JSON Value: \[\] Is not object"):
        parse_object(b"[]")


def test_long_values_are_cut_in_errors():
    assert len(shown(["x" * 1_000_000] * 10)) == 203
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert len(shown(nested)) <= 203
