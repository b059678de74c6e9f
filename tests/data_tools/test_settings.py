"""Tests of the settings of a dataset: allowed ranges and combinations."""

import json

import pytest

from data_tools.settings import Settings
from keras_bert.errors import InputError
from keras_bert.text.settings import TokenizerSettings


def test_settings_are_made_again_from_json():
    for settings in (
        Settings(ngram=3, pack=True),
        Settings(strip_accents=False, user_tokens=("[A]",), max_input_chars_per_word=100),
    ):
        values = json.loads(json.dumps(settings.to_dict()))
        assert values == settings.to_dict()
        assert Settings(**values) == settings


def test_equal_tokenizer_settings_are_not_a_difference():
    assert Settings(strip_accents=True) == Settings()
    assert Settings(do_lower_case=False, strip_accents=False) == Settings(do_lower_case=False)
    assert Settings(strip_accents=False).tokenizer() == TokenizerSettings(True, False)


def test_dupe_factor_is_1_by_default_for_dynamic_masking():
    assert Settings().dupe_factor == 10
    assert Settings(dynamic=True).dupe_factor == 1
    assert Settings(dynamic=True, dupe_factor=3).dupe_factor == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"ngram": 6, "max_predictions_per_seq": 5},
            "--ngram=6: expected at most --max_predictions_per_seq=5",
        ),
        (
            {"max_predictions_per_seq": 200},
            "--max_predictions_per_seq=200: expected at most --max_seq_length=128",
        ),
        ({"strip_accents": "no"}, "strip_accents='no': expected true or false"),
        (
            {"text_field": "body", "input_format": "wiki"},
            "--text_field=body with --input_format=wiki: expected an --input_format of jsonl, "
            "parquet, arrow, mixed, the formats with a choice of fields",
        ),
        ({"text_field": ""}, "--text_field=: expected the name of a field"),
        (
            {"language": "xy", "input_format": "prose"},
            "--language=xy: expected a two-letter ISO 639-1 code, for example en, de or zh",
        ),
        (
            {"language": "de"},
            "--language=de with --input_format=sentences: expected another --input_format, because "
            "a file with one sentence per line is not split",
        ),
    ],
)
def test_settings_out_of_range_or_without_effect_are_rejected(values, message):
    with pytest.raises(InputError) as caught:
        Settings(**values)
    assert str(caught.value) == message
