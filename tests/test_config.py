"""BertConfig: Google's values, and one clear line for every invalid value."""

import json
import warnings

import pytest

from keras_bert.config import BertConfig, bundled_names
from keras_bert.errors import InputError


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads"),
    [
        ("tiny", 2, 128, 2),
        ("mini", 4, 256, 4),
        ("small", 4, 512, 8),
        ("medium", 8, 512, 8),
        ("base", 12, 768, 12),
        ("large", 24, 1024, 16),
    ],
)
def test_bundled_configs_have_googles_values(name, layers, hidden, heads):
    for spelling in (name, f"{name}.json"):
        assert BertConfig.from_json(spelling) == BertConfig(
            vocab_size=30522,
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            hidden_act="gelu_new",
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
            max_position_embeddings=512,
            type_vocab_size=2,
            initializer_range=0.02,
            layer_norm_eps=1e-12,
        )
    assert name in bundled_names()


def test_file_takes_precedence_over_a_bundled_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    BertConfig(vocab_size=7, hidden_size=12).to_json("large.json")
    assert BertConfig.from_json("large.json").vocab_size == 7
    assert BertConfig.from_json("large").vocab_size == 30522


@pytest.mark.parametrize(
    ("key", "value", "quoted"),
    [
        ("hidden_size", 10, "hidden_size is 10; expected a multiple of num_attention_heads"),
        ("num_hidden_layers", 0, "num_hidden_layers is 0; expected a whole number from 1 to 1000"),
        ("vocab_size", "30522", 'vocab_size is "30522"; expected a whole number'),
        ("vocab_size", 10**4000, "vocab_size is 1000000"),
        ("hidden_dropout_prob", 1.0, "hidden_dropout_prob is 1.0; expected a finite number"),
        ("attention_probs_dropout_prob", float("nan"), "attention_probs_dropout_prob is NaN"),
        ("hidden_act", "swish", 'hidden_act is "swish"; expected one of gelu, gelu_new'),
        ("initializer_range", 0, "initializer_range is 0; expected a finite number above 0"),
    ],
)
def test_invalid_value_is_rejected_with_key_value_and_expectation(tmp_path, key, value, quoted):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"vocab_size": 100, key: value}))
    with pytest.raises(InputError) as error:
        BertConfig.from_json(path)
    assert str(error.value).startswith(f"{path}: {quoted}")
    assert "\n" not in str(error.value)


def test_file_without_a_vocabulary_size_is_rejected(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text("{}")
    with pytest.raises(InputError, match=r"bad\.json: vocab_size is missing"):
        BertConfig.from_json(path)


def test_error_for_a_missing_file_names_the_bundled_configs(tmp_path):
    with pytest.raises(InputError, match=r"huge\.json: no such file.*tiny, mini, small, medium"):
        BertConfig.from_json("huge.json")
    with pytest.raises(InputError, match="no such file"):
        BertConfig.from_json(tmp_path)


def test_unknown_keys_raise_a_warning():
    with pytest.warns(UserWarning, match="unknown config keys are ignored: hiden_size, zeta"):
        BertConfig.from_dict({"vocab_size": 9, "hiden_size": 12, "zeta": 1})


def test_keys_of_other_writers_are_accepted_silently():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BertConfig.from_dict(
            {
                "vocab_size": 9,
                "model_type": "bert",
                "position_embedding_type": "absolute",
                "transformers_version": "5.0.0",
                "pooler_type": "first_token_transform",
                "directionality": "bidi",
                "is_decoder": False,
                "pruned_heads": {},
                "classifier_dropout": None,
            }
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("model_type", "roberta"),
        ("tie_word_embeddings", False),
        ("pruned_heads", {"0": [1]}),
    ],
)
def test_key_that_changes_the_computation_is_rejected(key, value):
    with pytest.raises(InputError, match=f"{key} is .*other values change the computation"):
        BertConfig.from_dict({"vocab_size": 9, key: value})


def test_is_decoder_is_written_only_for_left_to_right():
    both, left_to_right = (BertConfig(vocab_size=9, is_decoder=value) for value in (False, True))
    assert "is_decoder" not in both.to_dict()  # Google's configs have no such key.
    assert BertConfig.from_dict(left_to_right.to_dict()) == left_to_right
    with pytest.raises(InputError, match="is_decoder is 1; expected true or false"):
        BertConfig(vocab_size=9, is_decoder=1)


def test_original_google_files_load(shared_data):
    files = sorted((shared_data / "bert_configs").glob("*.json"))
    assert files
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configs = {path.stem: BertConfig.from_json(path) for path in files}
    assert configs["bert-large-cased"].vocab_size == 28996
    assert configs["bert-large-cased"].num_hidden_layers == 24
