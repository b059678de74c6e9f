"""Tests that the tokenizer's table does not depend on the Unicode version of Python."""

import hashlib
import unicodedata

import pytest

from keras_bert.text.normalization import assigned_characters, final_sigma_pattern, normalizer_model
from keras_bert.text.settings import TokenizerSettings


def digest(content):
    return hashlib.sha256(content).hexdigest()[:16]


@pytest.mark.slow
def test_table_is_that_of_unicode_14():
    """The digests come from `unicodedata` of Python 3.11; they are the same on 3.12 and 3.13."""
    assert digest(normalizer_model(TokenizerSettings(False))) == "79c62c80df5986eb"
    assert digest(normalizer_model(TokenizerSettings(True))) == "c66dc464737e2e96"
    assert digest(final_sigma_pattern().encode()) == "d1f180d02f3095b4"


def test_assigned_characters_are_also_assigned_in_python():
    assigned = list(assigned_characters())
    assert (
        len(assigned) == 144_697 + 65 + 137_468 + 2048
    )  # Graphic and format, control, Co and Cs characters.
    assert assigned == sorted(set(assigned))
    assert all(unicodedata.category(char) != "Cn" for char in assigned)
    if unicodedata.unidata_version == "14.0.0":
        everything = (chr(code) for code in range(0x110000))
        assert assigned == [char for char in everything if unicodedata.category(char) != "Cn"]
