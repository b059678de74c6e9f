"""Tokenizers of Hugging Face directories: BERT's opens; others give a one-line reason."""

import dataclasses
import json
import shutil

import pytest

from keras_bert.checkpoints.convert import convert
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.errors import InputError
from keras_bert.tasks.fine_tuning import open_pretrained
from keras_bert.tasks.settings import FineTuningSettings
from keras_bert.text.settings import TokenizerSettings
from tests.checkpoints.conftest import edit

# Tokenizer files that transformers 5.23 saves with the weights of a BERT model.
SLOW = {
    "backend": "tokenizers",
    "cls_token": "[CLS]",
    "do_lower_case": True,
    "mask_token": "[MASK]",
    "model_max_length": 512,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
    "tokenizer_class": "BertTokenizer",
}
NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
FAST = {
    "normalizer": NORMALIZER,
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {"type": "WordPiece", "continuing_subword_prefix": "##"},
}


@pytest.fixture
def path(tiny, tmp_path):
    """Creates a Hugging Face directory."""
    save_model_directory(tmp_path / "model", tiny.make("encoder"), tiny.vocab)
    return tmp_path / "model"


def write(path, slow=None, fast=None, **config):
    """Replaces or removes the tokenizer files of a directory, and changes its config."""
    for name, content in (("tokenizer_config.json", slow), ("tokenizer.json", fast)):
        (path / name).unlink(missing_ok=True)
        if content is not None:
            (path / name).write_text(json.dumps(content))
    edit(path / "config.json", **config)


def tokenizer_json(fast, tiny):
    """Returns a tokenizer.json with its vocabulary."""
    ids = {token: index for index, token in enumerate(tiny.vocab)}
    return {**fast, "model": {**fast["model"], "vocab": ids}}


@pytest.mark.parametrize(
    ("slow", "casing"),
    [
        (SLOW | {"tokenizer_class": "DistilBertTokenizer"}, True),
        # Written by transformers 4.
        ({"tokenizer_class": "ElectraTokenizerFast", "do_lower_case": False}, False),
        ({"do_basic_tokenize": True, "never_split": ["[SEP]"], "tokenizer_class": None}, True),
        ({}, True),
        (None, True),
    ],
)
def test_bert_tokenizers_open(path, tiny, slow, casing):
    write(path, slow, tokenizer_class="BertTokenizerFast")
    checkpoint = open_checkpoint(path)
    assert checkpoint.tokenizer_mismatch is None
    assert checkpoint.vocab == tiny.vocab
    assert checkpoint.do_lower_case is casing


@pytest.mark.parametrize(
    ("slow", "settings"),
    [
        ({}, TokenizerSettings()),
        ({"strip_accents": False}, TokenizerSettings(True, False)),
        ({"do_lower_case": False, "strip_accents": True}, TokenizerSettings(False, True)),
        ({"tokenize_chinese_chars": False}, TokenizerSettings(tokenize_chinese_chars=False)),
        ({"strip_accents": True, "tokenize_chinese_chars": None}, TokenizerSettings()),
    ],
)
def test_settings_are_read_from_either_file(path, tiny, slow, settings):
    settings = dataclasses.replace(settings, max_input_chars_per_word=100)
    write(path, SLOW | slow)
    assert open_checkpoint(path).tokenizer_settings == settings
    normalizer = NORMALIZER | {
        "lowercase": settings.do_lower_case,
        "strip_accents": settings.strip_accents,
        "handle_chinese_chars": settings.tokenize_chinese_chars,
    }
    fast = tokenizer_json(FAST | {"normalizer": normalizer}, tiny)
    for name in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        write(path, {"tokenizer_class": name}, fast)
        assert open_checkpoint(path).tokenizer_settings == settings
    write(path, SLOW | slow, fast)
    checkpoint = open_checkpoint(path)
    assert (checkpoint.tokenizer_settings, checkpoint.vocab) == (settings, tiny.vocab)


@pytest.mark.parametrize(
    ("slow", "normalizer", "settings"),
    [
        (
            {"tokenizer_class": "BertTokenizer", "strip_accents": None},
            {"strip_accents": False},
            TokenizerSettings(),
        ),
        (
            {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
            {"strip_accents": False},
            TokenizerSettings(True, False),
        ),
        ({"tokenizer_class": "BertTokenizer"}, {"lowercase": False}, TokenizerSettings(False)),
        ({"do_lower_case": True}, {"strip_accents": False}, TokenizerSettings(True, False)),
    ],
)
def test_one_file_takes_precedence_as_in_transformers(path, tiny, slow, normalizer, settings):
    write(path, slow, tokenizer_json(FAST | {"normalizer": NORMALIZER | normalizer}, tiny))
    settings = dataclasses.replace(settings, max_input_chars_per_word=100)
    assert open_checkpoint(path).tokenizer_settings == settings


@pytest.mark.parametrize("key", ["strip_accents", "tokenize_chinese_chars"])
def test_setting_of_a_wrong_type_is_rejected(path, tiny, key):
    write(path, SLOW | {key: "no"})
    with pytest.raises(InputError, match=rf"tokenizer_config.json: {key} is 'no'; expected true"):
        open_checkpoint(path)
    name = {"tokenize_chinese_chars": "handle_chinese_chars"}.get(key, key)
    write(path, SLOW, tokenizer_json(FAST | {"normalizer": NORMALIZER | {name: 0}}, tiny))
    with pytest.raises(InputError, match=rf"tokenizer.json: normalizer.{name} is 0; expected true"):
        open_checkpoint(path)


def test_settings_can_be_corrected(tiny, tmp_path):
    description = {"vocab": tiny.vocab}
    save_model_directory(tmp_path / "source", tiny.make("encoder"), **description)
    changes = {"do_lower_case": None, "strip_accents": False, "tokenize_chinese_chars": False}
    convert(tmp_path / "source", tmp_path / "target", tokenizer=changes)
    opened = open_checkpoint(tmp_path / "target")
    assert opened.tokenizer_settings == TokenizerSettings(True, False, False)


@pytest.mark.parametrize(
    ("slow", "fast", "line"),
    [
        (
            {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"},
            {},
            'tokenizer_class is "BertJapaneseTokenizer"; expected "BertTokenizer", as in Google',
        ),
        ({"tokenizer_class": ["BertTokenizer"]}, {}, 'tokenizer_class is ["BertTokenizer"]; exp'),
        ({"word_tokenizer_type": "mecab"}, {}, 'word_tokenizer_type is "mecab"; expected "basic"'),
        ({"do_basic_tokenize": False}, {}, "do_basic_tokenize is false; expected true"),
        ({"cls_token": "<s>"}, {}, 'cls_token is "<s>"; expected "[CLS]"'),
        ({"wordpieces_prefix": "@@"}, {}, 'wordpieces_prefix is "@@"; expected "##"'),
        ({}, {"normalizer": {"type": "Sequence"}}, 'normalizer.type is "Sequence"; expected "Bert'),
        ({}, {"normalizer": {"clean_text": False}}, "normalizer.clean_text is false; expected t"),
        ({}, {"pre_tokenizer": {"type": "Whitespace"}}, 'pre_tokenizer.type is "Whitespace"; exp'),
        ({}, {"model": {"type": "Unigram"}}, 'model.type is "Unigram"; expected "WordPiece"'),
        ({}, {"model": {"continuing_subword_prefix": ""}}, 'model.continuing_subword_prefix is ""'),
        # A generic class needs tokenizer.json.
        ({"tokenizer_class": "TokenizersBackend"}, {"normalizer": {"type": None}}, "normalizer.ty"),
    ],
)
def test_incompatible_tokenizer_gives_no_vocabulary_and_a_reason(path, tiny, slow, fast, line):
    steps = {name: FAST[name] | change for name, change in fast.items()}
    write(path, SLOW | slow, tokenizer_json(FAST | steps, tiny))
    name = "tokenizer.json" if fast else "tokenizer_config.json"
    for has_vocab_file in (True, False):
        if not has_vocab_file:
            (path / "vocab.txt").unlink()
        checkpoint = open_checkpoint(path)
        assert checkpoint.vocab is None
        assert checkpoint.tokenizer_mismatch.startswith(f"{path}/{name}: {line}")
        assert "\n" not in checkpoint.tokenizer_mismatch


def test_tokenizer_class_may_be_in_config_json(path):
    write(path, {"tokenizer_class": None}, tokenizer_class="BertJapaneseTokenizer")
    line = f'{path}/config.json: tokenizer_class is "BertJapaneseTokenizer"; expected'
    assert open_checkpoint(path).tokenizer_mismatch.startswith(line)


def test_fine_tuning_requires_a_compatible_vocabulary(path, tiny):
    write(path, SLOW | {"clean_text": False})
    with pytest.raises(InputError) as error:
        open_pretrained(FineTuningSettings(str(path), max_seq_length=16))
    assert str(error.value) == (
        f"{path}/tokenizer_config.json: clean_text is false; expected true, as in Google's "
        "BERT tokenizer; pass a vocabulary for BERT's tokenizer as --vocab_file"
    )
    start = open_pretrained(
        FineTuningSettings(str(path), str(path / "vocab.txt"), max_seq_length=16)
    )
    assert (start.vocab, start.do_lower_case) == (tiny.vocab, True)


@pytest.mark.parametrize(
    ("slow", "fast", "limit"),
    [
        ({}, 150, 150),
        ({"max_input_chars_per_word": 120}, None, 120),
    ],
)
def test_longest_word_is_that_of_the_directory(path, tiny, tmp_path, slow, fast, limit):
    files = tokenizer_json(FAST, tiny)
    files["model"]["max_input_chars_per_word"] = fast
    write(path, SLOW | slow, files)
    convert(path, tmp_path / "saved")
    texts = ["caf" + "e" * (limit - 3), "caf" + "e" * (limit - 2)]  # tokens "caf" and "##e"
    for folder in (path, tmp_path / "saved"):
        tokens = open_checkpoint(folder).tokenizer().tokenize(texts)
        assert tokens.row_lengths().numpy().tolist() == [limit - 2, 1]


def test_truncation_of_the_first_tokens_is_reported_as_ignored(path, tiny, caplog):
    write(path, SLOW | {"truncation_side": "right"}, tokenizer_json(FAST, tiny))
    open_checkpoint(path)
    assert "truncation_side" not in caplog.text
    write(path, SLOW | {"truncation_side": "left"}, tokenizer_json(FAST, tiny))
    open_checkpoint(path)
    assert 'truncation_side is "left", which is ignored' in caplog.text


def test_vocabulary_of_tokenizer_json_is_used_and_its_missing_ids_are_unused(path, tiny):
    vocab = [*tiny.vocab[:5], *reversed(tiny.vocab[5:])]
    (path / "vocab.txt").write_text("\n".join(vocab))
    files = tokenizer_json(FAST, tiny)
    write(path, SLOW, files)
    assert open_checkpoint(path).vocab == tiny.vocab
    (path / "vocab.txt").unlink()
    del files["model"]["vocab"]["work"], files["model"]["vocab"]["play"]
    write(path, SLOW, files)
    assert open_checkpoint(path).vocab == [
        {"work": "[unused0]", "play": "[unused1]"}.get(token, token) for token in tiny.vocab
    ]


def test_ids_of_long_words_and_odd_vocabularies_are_those_of_transformers(
    path, run_in_peers, tmp_path
):
    """Words of 99 to 201 characters; empty lines, repeated tokens, white space at line ends."""
    write(path, SLOW)  # Without tokenizer.json, the limit is that of transformers.
    convert(path, tmp_path / "saved")
    folders = [path, tmp_path / "saved", shutil.copytree(path, tmp_path / "odd")]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "all", "", "work ", "all", "dull\t", ""]
    (tmp_path / "odd" / "vocab.txt").write_text("\n".join([*tokens, "boy"]) + "\n")
    words = ["caf" + "e" * (length - 3) for length in (99, 100, 101, 150, 151, 199, 200, 201)]
    texts = [*words, *(f"boy {word}, no" for word in words), "all work dull boy"]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    files = (tmp_path / "texts.json", tmp_path / "out.json")
    run_in_peers("tokenize_transformers.py", *files, *folders)
    outputs = json.loads(files[1].read_text())
    assert outputs[2][-1] == [8, 7, 9, 11]
    for folder, theirs in zip(folders, outputs, strict=True):
        assert open_checkpoint(folder).tokenizer(None).tokenize(texts).to_list() == theirs
