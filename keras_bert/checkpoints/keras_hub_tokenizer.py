"""Reads and writes the tokenizer of a KerasHub preset.

`tokenizer.json` has the settings as KerasHub names them. What KerasHub cannot express is stored
under `keras_bert` in `metadata.json`, which it ignores and does not keep when it saves the preset.
docs/concepts/tokenizer.md lists the texts for which KerasHub computes other token ids.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.checkpoints.checkpoint import guess_lower_case
from keras_bert.checkpoints.tokenizer_files import find_mismatch
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, value_of
from keras_bert.text.settings import USER_TOKENS, TokenizerSettings
from keras_bert.text.user_tokens import UserToken
from keras_bert.text.vocabulary import SPECIAL_TOKENS

METADATA, TOKENIZER = "metadata.json", "tokenizer.json"

# Keys, each with the only value that matches BERT's tokenizer.
_RULES = (
    ("class_name", "BertTokenizer"),
    ("split", True),
    ("suffix_indicator", "##"),
    ("oov_token", "[UNK]"),
)
# The key under `keras_bert` in metadata.json for a `strip_accents` that differs from `lowercase`.
_STRIP_ACCENTS, _MAX_CHARS = "strip_accents", "max_input_chars_per_word"
METADATA_KEYS = (_STRIP_ACCENTS, _MAX_CHARS, USER_TOKENS)
# KerasHub counts bytes, not characters.
_KERAS_HUB_MAX_CHARS = 100


def read_tokenizer(
    path: Path, metadata: Mapping[str, Any], vocab: Sequence[str] | None
) -> tuple[TokenizerSettings, str | None]:
    """Reads the settings of the tokenizer of the preset `path`.

    `metadata` has those of METADATA_KEYS that are under `keras_bert` in metadata.json.

    Returns:
        The settings, and one line about a setting that is not supported; None if all are.

    Raises:
        InputError: a setting has the wrong type.
    """
    file = path / TOKENIZER
    content = _read_content(file)
    mismatch = find_mismatch(file, content, _RULES)
    keeps_accents = value_of(path / METADATA, metadata, _STRIP_ACCENTS, bool, None) is False
    settings = replace(
        _settings(file, content, guess_lower_case(vocab, path), keeps_accents),
        max_input_chars_per_word=value_of(
            path / METADATA, metadata, _MAX_CHARS, int, _KERAS_HUB_MAX_CHARS
        ),
    )
    if USER_TOKENS in metadata:
        of_metadata = TokenizerSettings.read(path / METADATA, {USER_TOKENS: metadata[USER_TOKENS]})
        return replace(settings, user_tokens=of_metadata.user_tokens), mismatch
    contents = _special_tokens(file, content, vocab or ())
    try:
        return replace(settings, user_tokens=tuple(map(UserToken, contents))), mismatch
    except InputError as error:
        return settings, mismatch or f"{file}: special_tokens: {error}"


def metadata_of(settings: TokenizerSettings) -> dict[str, Any]:
    """Returns the entries of METADATA_KEYS that metadata.json needs."""
    own: dict[str, Any] = {}
    if settings.strip_accents is not None:
        own[_STRIP_ACCENTS] = settings.strip_accents
    if settings.max_input_chars_per_word != _KERAS_HUB_MAX_CHARS:
        own[_MAX_CHARS] = settings.max_input_chars_per_word
    if settings.user_tokens:
        own[USER_TOKENS] = settings.to_dict()[USER_TOKENS]
    return own


def tokenizer_object(settings: TokenizerSettings) -> dict[str, Any]:
    """Returns the content of tokenizer.json."""
    own = {
        "config_file": TOKENIZER,
        "vocabulary": None,
        "lowercase": settings.do_lower_case,
        "strip_accents": settings.strips_accents,  # KerasHub's default keeps accents.
    }
    if not settings.tokenize_chinese_chars:
        own["split_on_cjk"] = False
    if settings.user_tokens:
        # KerasHub then also keeps [MASK] and the other special tokens whole, as transformers does.
        # It takes the first token that matches, so the longest must come first.
        contents = [token.content for token in settings.user_tokens]
        own["special_tokens"] = sorted(contents, key=len, reverse=True)
        own["special_tokens_in_strings"] = True
    return keras_object("bert.bert_tokenizer", "BertTokenizer", own, "int32")


def keras_object(
    module: str, kind: str, own: Mapping[str, Any], dtype: str | None = None
) -> dict[str, Any]:
    """Returns an object's config in the serialization format of Keras."""
    policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": dtype}}
    return {
        "module": f"keras_hub.src.models.{module}",
        "class_name": kind,
        "config": {**own, **({"dtype": policy} if dtype else {})},
        "registered_name": f"keras_hub>{kind}",
    }


def _read_content(file: Path) -> dict[str, Any]:
    tokenizer = read_json(file) if file.is_file() else {}
    own = tokenizer.get("config")
    return {**(own if isinstance(own, dict) else {}), "class_name": tokenizer.get("class_name")}


def _settings(
    file: Path, content: Mapping[str, Any], casing: bool, keeps_accents: bool
) -> TokenizerSettings:
    """Returns the settings in a preset's tokenizer.json.

    `casing` is the value of a missing `lowercase`; `keeps_accents` is whether metadata.json states
    that accents are kept.
    """
    do_lower_case = value_of(file, content, "lowercase", bool, casing)
    strip_accents = value_of(file, content, "strip_accents", bool, None)
    if do_lower_case and strip_accents is False and not keeps_accents:
        # KerasHub's default is false, even in presets of uncased models that it converted from
        # Hugging Face. This is an error of KerasHub: these models were trained without accents.
        logging.warning(
            "%s: strip_accents is false; accents are stripped anyway, as in Google's BERT; for a "
            "model that was trained with accents, convert the preset with --nostrip_accents",
            file,
        )
        strip_accents = None
    chinese = value_of(file, content, "split_on_cjk", bool, True)
    return TokenizerSettings(do_lower_case, strip_accents, chinese)


def _special_tokens(file: Path, content: Mapping[str, Any], vocab: Sequence[str]) -> list[str]:
    """Returns the tokens besides BERT's that KerasHub keeps whole, in the order of their ids."""
    if not value_of(file, content, "special_tokens_in_strings", bool, False):
        return []
    tokens = content.get("special_tokens") or []
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{file}: special_tokens is {tokens!r}; expected a list of strings")
    own = {*tokens} - {*SPECIAL_TOKENS}
    return [token for token in vocab if token in own]
