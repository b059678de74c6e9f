"""Reads the vocabulary and the settings of a Hugging Face tokenizer.

A directory may specify a tokenizer that differs from this library's (docs/concepts/tokenizer.md),
for example one that splits words with MeCab. The weights in such a directory can be used, but the
vocabulary cannot, because this library's tokenizer would split texts into other tokens than in the
model's training.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.checkpoints.added_tokens import ADDED_TOKENS, read_added_tokens
from keras_bert.checkpoints.checkpoint import guess_lower_case
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, value_of
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import (
    SPECIAL_TOKENS,
    check_vocab,
    load_vocab,
    named_tokens,
    stripped,
)

CONFIG, VOCAB = "config.json", "vocab.txt"
TOKENIZER, FAST_TOKENIZER = "tokenizer_config.json", "tokenizer.json"

# Classes of transformers, in all versions, that tokenize text as BERT does.
_BERT_CLASSES = (
    "BertTokenizer",
    "BertTokenizerFast",
    "DistilBertTokenizer",
    "DistilBertTokenizerFast",
    "ElectraTokenizer",
    "ElectraTokenizerFast",
)
# Classes that follow tokenizer.json, which must then specify BERT's steps.
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

# Keys of tokenizer_config.json, each with the only value that matches BERT's tokenizer.
# `never_split` is not among them, because transformers 5 ignores it too.
_RULES = (
    ("word_tokenizer_type", "basic"),
    ("subword_tokenizer_type", "wordpiece"),
    ("do_basic_tokenize", True),
    ("clean_text", True),
    ("wordpieces_prefix", "##"),
    *((f"{token[1:-1].lower()}_token", token) for token in SPECIAL_TOKENS),
)
# The same for tokenizer.json: first the type of each step, then the settings of the steps.
_STEPS = (
    ("normalizer.type", "BertNormalizer"),
    ("pre_tokenizer.type", "BertPreTokenizer"),
    ("model.type", "WordPiece"),
)
_FAST_RULES = (
    *_STEPS,
    ("normalizer.clean_text", True),
    ("model.continuing_subword_prefix", "##"),
)
_MAX_CHARS = "max_input_chars_per_word"
# Setting of this library -> the key of tokenizer.json; in tokenizer_config.json, the names are the
# same.
_FAST_KEYS = {
    "do_lower_case": "normalizer.lowercase",
    "strip_accents": "normalizer.strip_accents",
    "tokenize_chinese_chars": "normalizer.handle_chinese_chars",
    _MAX_CHARS: f"model.{_MAX_CHARS}",
}
_DEFAULT_MAX_CHARS = 100  # In transformers, unlike in Google's code.


def read_tokenizer(
    path: Path, config: Mapping[str, Any]
) -> tuple[list[str] | None, TokenizerSettings, str | None]:
    """Reads the tokenizer files of a directory; `config` is the content of its config.json.

    Returns:
        vocab: the V tokens in the order of their ids, from `vocab.txt`, or else `tokenizer.json`,
            followed by added tokens; None if the directory has neither file, or if the tokenizer is
            not BERT's.
        settings: the settings of the tokenizer.
        mismatch: one line about the first setting that does not match BERT's tokenizer, from
            `find_mismatch`; None if all match.

    Raises:
        InputError: a file cannot be read, or the vocabulary is invalid.
    """
    slow, fast, added = (
        read_json(path / name) if (path / name).is_file() else {}
        for name in (TOKENIZER, FAST_TOKENIZER, ADDED_TOKENS)
    )
    steps = _steps(fast)
    mismatch = (
        _class_mismatch(path, slow, steps, config)
        or find_mismatch(path / TOKENIZER, slow, _RULES)
        or find_mismatch(path / FAST_TOKENIZER, steps, _FAST_RULES)
    )
    if slow.get("truncation_side", "right") != "right":
        logging.warning(
            "%s: truncation_side is %s, which is ignored: long texts lose their last tokens, so "
            "their results differ from those of transformers",
            path / TOKENIZER,
            json.dumps(slow["truncation_side"]),
        )
    vocab = None
    if not mismatch and (path / VOCAB).is_file():
        vocab = load_vocab(path / VOCAB)
    # transformers 5 and later write only tokenizer.json.
    if not mismatch and fast and (vocab is None or "model.vocab" in steps):
        in_fast = _fast_vocab(path / FAST_TOKENIZER, fast.get("model"), config)
        if vocab is not None and vocab[: len(in_fast)] != in_fast:
            logging.warning(
                "%s: has another vocabulary than %s; the former is used, as in transformers",
                path / FAST_TOKENIZER,
                VOCAB,
            )
            vocab = None
        vocab = vocab or in_fast
    files = [
        (path / TOKENIZER, slow, {name: name for name in _FAST_KEYS}),
        (path / FAST_TOKENIZER, steps, _FAST_KEYS),
    ]
    # As in transformers: BERT's classes follow tokenizer_config.json, and generic ones the other.
    if _declared_class(slow, config)[1] in _GENERIC_CLASSES:
        files.reverse()
    casing = guess_lower_case(vocab, path)
    settings = _read_settings(files, casing)
    if vocab is None:
        return None, settings, mismatch
    found = read_added_tokens(
        {
            "fast": (path / FAST_TOKENIZER, fast),
            "slow": (path / TOKENIZER, slow),
            "added": (path / ADDED_TOKENS, added),
        },
        vocab,
    )
    if found.mismatch:
        return None, settings, found.mismatch
    return found.vocab, replace(settings, user_tokens=found.user_tokens), None


def _read_settings(
    files: Sequence[tuple[Path, Mapping[str, Any], Mapping[str, str]]], do_lower_case: bool
) -> TokenizerSettings:
    """Combines the settings in two files; the values of the first file take precedence.

    Args:
        files: for each file its path, its content, and the key of each setting.
        do_lower_case: the value if it is in neither file.

    Raises:
        InputError: a value has the wrong type.
    """
    first, second = (_stated(*file, do_lower_case) for file in files)
    for name in first.keys() & second.keys():
        if first[name] != second[name]:
            (path, content, keys), (other, its_content, its_keys) = files
            key, its_key = keys[name], its_keys[name]
            logging.warning(
                "%s: %s is %s, but %s: %s is %s; the former is used, as in transformers",
                *(path, key, json.dumps(content[key])),
                *(other, its_key, json.dumps(its_content[its_key])),
            )
    defaults = {"do_lower_case": do_lower_case, _MAX_CHARS: _DEFAULT_MAX_CHARS}
    return TokenizerSettings(**{**defaults, **second, **first})


def _stated(
    path: Path, content: Mapping[str, Any], keys: Mapping[str, str], do_lower_case: bool
) -> dict[str, bool | int | None]:
    """Returns the settings that a file contains, by name."""
    values = {
        name: value_of(path, content, key, int if name == _MAX_CHARS else bool, None)
        for name, key in keys.items()
        # A null has a meaning only for strip_accents.
        if key in content and (content[key] is not None or name == "strip_accents")
    }
    try:
        settings = TokenizerSettings(**{"do_lower_case": do_lower_case, **values})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return {name: getattr(settings, name) for name in values}


def find_mismatch(
    file: Path, settings: Mapping[str, Any], rules: Iterable[tuple[str, Any]]
) -> str | None:
    """Finds the first setting of a file that this library's tokenizer does not support.

    `rules` are (key, only supported value) pairs. A missing key or a null matches every rule.
    Returns one line with the file, the key and its value; None if all settings are supported.
    """
    for key, expected in rules:
        found = settings.get(key)
        if isinstance(found, Mapping):  # a special token with its settings
            found = found.get("content")
        if found is not None and found != expected:
            return _mismatch(file, key, found, expected)
    return None


def _mismatch(file: Path, key: str, found: Any, expected: Any) -> str:
    return (
        f"{file}: {key} is {json.dumps(found)}; expected {json.dumps(expected)}, as in Google's "
        "BERT tokenizer"
    )


def _class_mismatch(
    path: Path, slow: Mapping[str, Any], steps: Mapping[str, Any], config: Mapping[str, Any]
) -> str | None:
    """Finds a tokenizer class that is not BERT's, or a missing step of a generic class."""
    file, name = _declared_class(slow, config)
    if name in _GENERIC_CLASSES:
        missing = next(((key, value) for key, value in _STEPS if steps.get(key) is None), None)
        return missing and _mismatch(path / FAST_TOKENIZER, missing[0], None, missing[1])
    if name is not None and name not in _BERT_CLASSES:
        return _mismatch(path / file, "tokenizer_class", name, _BERT_CLASSES[0])
    return None


def _declared_class(slow: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns the tokenizer class, and the name of the file that it is from."""
    # As in transformers, config.json names the class if tokenizer_config.json does not.
    file, declared = (TOKENIZER, slow) if slow.get("tokenizer_class") else (CONFIG, config)
    return file, declared.get("tokenizer_class")


def _steps(fast: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of tokenizer.json's steps, with keys such as `normalizer.lowercase`."""
    parts = {name: fast.get(name) for name in ("normalizer", "pre_tokenizer", "model")}
    return {
        f"{name}.{key}": value
        for name, part in parts.items()
        if isinstance(part, dict)
        for key, value in part.items()
    }


def _fast_vocab(file: Path, model: Any, config: Mapping[str, Any]) -> list[str]:
    kind = model.get("type") if isinstance(model, dict) else None
    ids = model.get("vocab") if isinstance(model, dict) else None
    if kind is None:
        raise InputError(f"{file}: model has no type; expected WordPiece, as in BERT's tokenizer")
    rows = config["vocab_size"]
    is_valid = isinstance(ids, dict) and all(type(index) is int for index in ids.values())
    if is_valid:
        rows = max(rows, len(ids))
        is_valid = len({*ids.values()} & {*range(rows)}) == len(ids)
    if not is_valid:
        raise InputError(f"{file}: expected a vocab with different ids from 0 to {rows - 1}")
    tokens = [""] * rows  # The ids of empty and repeated lines of vocab.txt are missing here.
    for token, index in ids.items():
        tokens[index] = stripped(token)
    vocab = named_tokens(tokens, str(file))
    check_vocab(vocab, where=str(file))
    return vocab
