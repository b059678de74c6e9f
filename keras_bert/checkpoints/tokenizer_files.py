"""Reads and writes the tokenizer files of a Hugging Face directory.

A directory may specify a tokenizer that differs from this library's (docs/concepts/tokenizer.md),
for example one that splits words with MeCab. The weights in such a directory can be used, but the
vocabulary cannot, because this library's tokenizer would split texts into other tokens than in the
model's training.

Added tokens are in up to three files:

    tokenizer.json          added_tokens            [{"id": 30522, "content": "[URL]", ...}, ...]
    tokenizer_config.json   added_tokens_decoder    {"30522": {"content": "[URL]", ...}, ...}
                            additional_special_tokens, extra_special_tokens     ["[URL]", ...]
    added_tokens.json                               {"[URL]": 30522}

The first two have precedence in this order; added_tokens.json counts if neither has any. An added
token is a user token (`keras_bert.text.settings`). Its id is that of the same token in the
vocabulary, or else it follows the vocabulary. BERT's special tokens may be listed too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import check_schema, read_json, value_of, write_bytes, write_json
from keras_bert.text.settings import TokenizerSettings, UserToken, ids_of, number_of_subwords
from keras_bert.text.vocabulary import (
    SPECIAL_TOKENS,
    check_vocab,
    fit_vocab,
    load_vocab,
    named_tokens,
    stripped,
)

CONFIG, VOCAB = "config.json", "vocab.txt"
TOKENIZER, FAST_TOKENIZER = "tokenizer_config.json", "tokenizer.json"
_ADDED_TOKENS = "added_tokens.json"

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
# Settings of an added token that must be false, because they change which texts match.
_UNSUPPORTED = ("lstrip", "rstrip", "single_word")


def read_tokenizer(
    path: Path, config: Mapping[str, Any]
) -> tuple[list[str] | None, TokenizerSettings, str | None]:
    """Reads the tokenizer files of a directory; `config` is the content of its config.json.

    Returns:
        vocab: the V tokens in the order of their ids, from `tokenizer.json`, or else `vocab.txt`,
            followed by added tokens; None if the directory has neither file, or if the tokenizer is
            not BERT's.
        settings: the settings of the tokenizer.
        mismatch: one line about the first setting that does not match BERT's tokenizer, from
            `find_mismatch`; None if all match.
    """
    slow, fast, added = (
        read_json(path / name) if (path / name).is_file() else {}
        for name in (TOKENIZER, FAST_TOKENIZER, _ADDED_TOKENS)
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
    vocab, has_vocab_file = None, (path / VOCAB).is_file()
    if mismatch:
        pass  # The vocabulary is that of another tokenizer.
    elif "model.vocab" in steps or (fast and not has_vocab_file):
        vocab = _fast_vocab(path / FAST_TOKENIZER, fast.get("model"), config)
    elif has_vocab_file:
        vocab = load_vocab(path / VOCAB)
    files = [
        (path / TOKENIZER, slow, {name: name for name in _FAST_KEYS}),
        (path / FAST_TOKENIZER, steps, _FAST_KEYS),
    ]
    # As in transformers: BERT's classes follow tokenizer_config.json, and generic ones the other.
    if _declared_class(slow, config)[1] not in _GENERIC_CLASSES:
        files.reverse()
    values = {"do_lower_case": guess_lower_case(vocab, path.name), _MAX_CHARS: _DEFAULT_MAX_CHARS}
    for file, content, keys in files:
        for name, key in keys.items():
            kind = int if name == _MAX_CHARS else bool
            # A null has a meaning only for strip_accents.
            if key in content and (content[key] is not None or name == "strip_accents"):
                values[name] = value_of(file, content, key, kind, None)
    try:
        settings = TokenizerSettings(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if vocab is None:
        return None, settings, mismatch
    try:
        vocab, user_tokens = _with_added_tokens(path, fast, slow, added, vocab)
    except InputError as error:
        return None, settings, str(error)
    return vocab, replace(settings, user_tokens=user_tokens), None


def read_vocab(path: Path, rows: int) -> list[str] | None:
    """Reads vocab.txt for a table of `rows` embeddings, as `fit_vocab`; None without the file."""
    return fit_vocab(load_vocab(path), rows, path) if path.is_file() else None


def guess_lower_case(vocab: Sequence[str] | None, folder: str = "") -> bool:
    """Guesses whether the model of a checkpoint without a tokenizer config is uncased.

    The model is cased if a token of `vocab` has a capital letter. Without a vocabulary, the name of
    the folder decides, as in Google's names `cased_L-12...` and `multi_cased_L-12...`.
    """
    if vocab:
        # Ignore tokens such as [CLS], and <S>, which even the Chinese vocabulary contains.
        words = (token for token in vocab if token[0] not in "[<" or len(token) == 1)
        return all(token == token.lower() for token in words)
    return "uncased" in folder or "cased" not in folder


def find_mismatch(
    file: Path, settings: Mapping[str, Any], rules: Iterable[tuple[str, Any]]
) -> str | None:
    """Describes the first setting of a file that this library's tokenizer does not support.

    `rules` are (key, only supported value) pairs. A missing key or a null matches every rule. None
    means that all settings are supported.
    """
    for key, expected in rules:
        value = settings.get(key)
        if isinstance(value, Mapping):  # a special token with its settings
            value = value.get("content")
        if value is not None and value != expected:
            return _mismatch(file, key, value, expected)
    return None


def _mismatch(file: Path, key: str, value: Any, expected: Any) -> str:
    return (
        f"{file}: {key} is {json.dumps(value)}; expected {json.dumps(expected)}, as in Google's "
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
    check_schema(f"{file}: model", model, {"type": str, "vocab": dict})
    ids = model["vocab"]
    rows = max(config["vocab_size"], len(ids))
    are_ids = all(type(index) is int for index in ids.values())
    if not are_ids or len({*ids.values()} & {*range(rows)}) < len(ids):
        raise InputError(f"{file}: expected a vocab with different ids from 0 to {rows - 1}")
    tokens = [""] * rows  # The ids of empty and repeated lines of vocab.txt are missing here.
    for token, index in ids.items():
        tokens[index] = stripped(token)
    vocab = named_tokens(tokens, str(file))
    check_vocab(vocab, where=str(file))
    return vocab


# --- added tokens ---


def _with_added_tokens(
    path: Path,
    fast: Mapping[str, Any],
    slow: Mapping[str, Any],
    added: Mapping[str, Any],
    vocab: Sequence[str],
) -> tuple[list[str], tuple[UserToken, ...]]:
    """Combines the added tokens of a directory with its vocabulary.

    `fast`, `slow` and `added` are the contents of tokenizer.json, tokenizer_config.json and
    added_tokens.json. Returns the V tokens in the order of their ids, including the added tokens,
    and the added tokens without BERT's special tokens.
    """
    tokens: dict[str, UserToken] = {}
    ids: dict[str, float] = {}
    try:
        for token_id, value in _listed_tokens(fast, slow, added):
            content = value["content"]
            if content not in SPECIAL_TOKENS and content not in tokens:
                flags = (bool(value.get(name)) for name in ("normalized", "special"))
                tokens[content], ids[content] = UserToken(content, *flags), token_id
                for name in _UNSUPPORTED:
                    if value.get(name):
                        setting = f"{name} {json.dumps(value[name])}"
                        raise InputError(f"added token {content!r} has {setting}; expected false")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: the added tokens cannot be read ({error!r:.80}); expected the files that "
            "transformers writes"
        ) from None
    old = {*vocab}
    extended = [*vocab, *sorted((t for t in tokens if t not in old), key=ids.__getitem__)]
    indices = {token: index for index, token in enumerate(extended)}
    for content, token_id in ids.items():
        if token_id not in (_NEXT_ID, indices[content]):
            raise InputError(
                f"{path}: the added token {content!r} has the id {token_id}; expected "
                f"{indices[content]}, as in the vocabulary or directly after it"
            )
    return extended, tuple(tokens[content] for content in sorted(tokens, key=indices.__getitem__))


_NEXT_ID = float("inf")  # Tokens without an id get the next ones, as in transformers.


def _listed_tokens(
    fast: Mapping[str, Any], slow: Mapping[str, Any], added: Mapping[str, Any]
) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yields the id and the settings of each added token, in order of precedence.

    Raises an exception if the files do not have the form that transformers writes.
    """
    listed = fast.get("added_tokens") or []
    decoder = slow.get("added_tokens_decoder") or {}
    for value in listed:
        yield int(value["id"]), value
    for token_id, value in decoder.items():
        yield int(token_id), value
    if not listed and not decoder:
        for content, token_id in added.items():
            # As in transformers, which searches for these tokens in normalized text.
            yield int(token_id), {"content": content, "normalized": True}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values = slow.get(key) or []
        if not isinstance(values, (list, Mapping)):
            raise TypeError(f"{key} is no list")
        for value in values.values() if isinstance(values, Mapping) else values:
            is_text = isinstance(value, str)
            yield _NEXT_ID, {"content": value, "special": True} if is_text else value


# --- writing ---


# BERT's special tokens, which are listed with the user tokens.
_SPECIAL = tuple(UserToken(token, special=True) for token in SPECIAL_TOKENS)


def write_tokenizer(
    folder: Path, vocab: Sequence[str], tokenizer: TokenizerSettings, max_length: int
) -> None:
    """Writes vocab.txt, tokenizer_config.json and tokenizer.json into a folder.

    `max_length` is the largest number of tokens of a text.
    """
    content = {
        "tokenizer_class": "BertTokenizer",
        **replace(tokenizer, user_tokens=()).to_dict(),
        "model_max_length": max_length,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    if tokenizer.user_tokens:
        tokens = [*_SPECIAL, *tokenizer.user_tokens]
        by_id = sorted(zip(ids_of(tokens, vocab), tokens, strict=True), key=lambda pair: pair[0])
        content["added_tokens_decoder"] = {
            str(index): _added_token(token) for index, token in by_id
        }
    write_vocab(folder / VOCAB, vocab)
    write_json(folder / TOKENIZER, content)
    write_json(folder / FAST_TOKENIZER, tokenizer_json(vocab, tokenizer))


def write_vocab(path: Path, vocab: Sequence[str]) -> None:
    r"""Writes a vocabulary, one token per line; each line ends with "\n"."""
    write_bytes(path, "".join(f"{token}\n" for token in vocab).encode())


def tokenizer_json(vocab: Sequence[str], settings: TokenizerSettings) -> dict[str, Any]:
    """Returns the content of tokenizer.json for the V tokens in the order of their ids."""
    ids = {token: index for index, token in enumerate(vocab)}
    # Added tokens are not subwords, except for those before the end of the vocabulary.
    size = number_of_subwords(settings.user_tokens, vocab)
    added = sorted([*_SPECIAL, *settings.user_tokens], key=lambda token: ids[token.content])
    cls, sep = _special("[CLS]", 0), _special("[SEP]", 0)
    single = [cls, {"Sequence": {"id": "A", "type_id": 0}}, sep]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": ids[token.content], **_added_token(token)} for token in added],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.tokenize_chinese_chars,
            "strip_accents": settings.strip_accents,  # None: the same as `lowercase`.
            "lowercase": settings.do_lower_case,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}, _special("[SEP]", 1)],
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]}
                for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": settings.max_input_chars_per_word,
            "vocab": {token: index for token, index in ids.items() if index < size},
        },
    }


def _special(token: str, segment_id: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": segment_id}}


def _added_token(token: UserToken) -> dict[str, Any]:
    """Returns the object that stands for a token in the files."""
    return {
        "content": token.content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": token.normalized,
        "special": token.special,
    }
