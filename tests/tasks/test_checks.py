"""Tests argument checks: errors name the argument, its value and the expected value."""

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.tasks.checks import check_strings, check_texts


def test_invalid_utf8_bytes_are_replaced():
    assert check_strings("texts", [b"a\xff"]) == ["a\ufffd"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a text", "texts is 'a text', a str; expected a list of strings"),
        ({"a": 1}, "texts is a dict of 1 items; expected a list of strings"),
        (np.array("a"), "texts is a ndarray; expected a list of strings"),
        (["a", 5], r"texts\[1\] is 5, a int; expected a string"),
        (np.array([["a"]]), r"texts\[0\] is \['a'\], a list; expected a string"),
    ],
)
def test_value_that_is_not_a_list_of_strings_is_rejected(value, message):
    with pytest.raises(InputError, match=message) as caught:
        check_strings("texts", value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("allow_pairs", [False, True])
def test_two_strings_are_two_texts(allow_pairs):
    """Only `predict` takes them as one pair."""
    assert check_texts("texts", ("a", "b"), allow_pairs=allow_pairs) == (["a", "b"],)


@pytest.mark.parametrize(
    ("value", "allow_pairs", "message"),
    [
        ((["a"], ["b"]), False, r"texts is a tuple of 2 items; expected a list of strings$"),
        ((["a"], ["b"], ["c"]), True, r"tuple of 3 items; .*or for pairs a tuple of two lists"),
        ((["a"], ["b", "c"]), True, r"texts\[0\] has 1 items, texts\[1\] has 2 items; expected li"),
        ((["a"], [5]), True, r"texts\[1\]\[0\] is 5, a int; expected a string"),
        ([("a", "b"), "c"], True, r"texts\[1\] is 'c', a str; expected a tuple of 2 strings"),
        ([("a", "b"), ("c",)], True, r"texts\[1\] is a tuple of 1 items; expected a tuple of 2"),
        (
            [["a", "b"]],
            True,
            r"texts\[0\] is a list of 2 items; expected .*, or for a pair a tuple",
        ),
    ],
)
def test_invalid_pairs_are_rejected(value, allow_pairs, message):
    with pytest.raises(InputError, match=message):
        check_texts("texts", value, allow_pairs=allow_pairs)
