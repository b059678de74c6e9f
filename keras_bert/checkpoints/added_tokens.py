"""Reads and writes the tokens that a Hugging Face directory adds to its tokenizer.

They are in up to three files, which transformers combines:

    tokenizer.json          added_tokens            [{"id": 30522, "content": "[URL]", ...}, ...]
    tokenizer_config.json   added_tokens_decoder    {"30522": {"content": "[URL]", ...}, ...}
                            additional_special_tokens, extra_special_tokens     ["[URL]", ...]
    added_tokens.json                               {"[URL]": 30522}

An added token is a user token (`keras_bert.text.user_tokens`). Its id is that of the same token in
the vocabulary, or else it follows the vocabulary. BERT's special tokens may be listed too.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from keras_bert.common.errors import InputError
from keras_bert.text.user_tokens import UserToken, ids_of
from keras_bert.text.vocabulary import SPECIAL_TOKENS

ADDED_TOKENS = "added_tokens.json"
# Settings of an added token that must be false, because they change which texts match.
_UNSUPPORTED = ("lstrip", "rstrip", "single_word")


class _Entry(NamedTuple):
    """An added token in a file; `place` names the file and the key in error messages."""

    place: str
    token_id: int | None
    token: UserToken


class AddedTokens(NamedTuple):
    """The added tokens of a directory.

    Attributes:
        vocab: the V tokens in the order of their ids, including the added tokens.
        user_tokens: the added tokens without BERT's special tokens.
        mismatch: one line about the first added token that is not supported; None if all are.
    """

    vocab: list[str]
    user_tokens: tuple[UserToken, ...]
    mismatch: str | None


def read_added_tokens(
    files: Mapping[str, tuple[Path, Mapping[str, Any]]], vocab: Sequence[str]
) -> AddedTokens:
    """Combines the added tokens of a directory with its vocabulary.

    `files` has the path and the content of `fast` (tokenizer.json), `slow` (tokenizer_config.json)
    and `added` (added_tokens.json).
    """
    found: dict[str, _Entry] = {}
    try:
        for entry in _entries(files):
            first = found.setdefault(entry.token.content, entry)
            if first.token_id is None:
                first = found[entry.token.content] = first._replace(token_id=entry.token_id)
            _check_agree(first, entry)
        return AddedTokens(*_extend(vocab, [*found.values()]), None)
    except InputError as error:
        return AddedTokens([*vocab], (), str(error))


def added_token(token: UserToken) -> dict[str, Any]:
    """Returns the object that stands for a token in the files."""
    return {
        "content": token.content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": token.normalized,
        "special": token.special,
    }


def added_tokens_decoder(tokens: Sequence[UserToken], vocab: Sequence[str]) -> dict[str, Any]:
    """Returns the key `added_tokens_decoder` of tokenizer_config.json; {} without user tokens."""
    if not tokens:
        return {}
    special = [UserToken(token, special=True) for token in SPECIAL_TOKENS]
    tokens = [*special, *tokens]
    by_id = sorted(zip(ids_of(tokens, vocab), tokens, strict=True), key=lambda pair: pair[0])
    return {"added_tokens_decoder": {str(index): added_token(token) for index, token in by_id}}


def _entries(files: Mapping[str, tuple[Path, Mapping[str, Any]]]) -> Iterator[_Entry]:
    """Yields the entries of all files, except BERT's special tokens."""
    fast, fast_content = files["fast"]
    for value in _list(fast, fast_content, "added_tokens"):
        yield from _entry(f"{fast}: added_tokens", value, _id_of(fast, value))
    slow, slow_content = files["slow"]
    decoder = slow_content.get("added_tokens_decoder") or {}
    if not isinstance(decoder, Mapping) or not all(
        re.fullmatch(r"\d{1,9}", key) for key in decoder
    ):
        raise InputError(
            f"{slow}: added_tokens_decoder is {json.dumps(decoder)[:80]}; expected an object from "
            "ids to tokens"
        )
    for key, value in decoder.items():
        yield from _entry(f"{slow}: added_tokens_decoder", value, int(key))
    added, added_content = files["added"]
    for content, index in added_content.items():
        if content not in SPECIAL_TOKENS:
            # As in transformers, which searches for these tokens in normalized text.
            value = {"content": content, "normalized": True, "id": index}
            known = fast_content.get("added_tokens") or decoder
            yield from _entry(str(added), None if known else value, _id_of(added, value))
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = slow_content.get(key)
        value = [*value.values()] if isinstance(value, Mapping) else value
        for each in _list(slow, {key: value}, key):
            content = each.get("content") if isinstance(each, Mapping) else each
            known = fast_content.get("added_tokens") or decoder
            if not known or not _is_listed(content, fast_content, decoder):
                each = {"content": each, "special": True} if isinstance(each, str) else each
                yield from _entry(f"{slow}: {key}", each, None)


def _is_listed(content: Any, fast: Mapping[str, Any], decoder: Mapping[str, Any]) -> bool:
    listed = [*(fast.get("added_tokens") or ()), *decoder.values()]
    return any(isinstance(each, Mapping) and each.get("content") == content for each in listed)


def _entry(place: str, value: Any, token_id: int | None) -> Iterator[_Entry]:
    """Yields the entry of an object in a file, unless it is a special token of BERT."""
    if value is None or (isinstance(value, Mapping) and value.get("content") in SPECIAL_TOKENS):
        return
    token = UserToken.read(place, value)
    for name in _UNSUPPORTED:
        if value.get(name):
            raise InputError(
                f"{place}: {token.content!r} has {name} {json.dumps(value[name])}; expected false"
            )
    yield _Entry(place, token_id, token)


def _list(path: Path, content: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = content.get(key) or []
    if not isinstance(value, list):
        raise InputError(f"{path}: {key} is {json.dumps(value)[:80]}; expected a list")
    return value


def _id_of(path: Path, value: Any) -> int:
    token_id = value.get("id") if isinstance(value, Mapping) else None
    if not isinstance(token_id, int) or isinstance(token_id, bool):
        raise InputError(
            f"{path}: the added token {json.dumps(value)[:80]} has no id; expected a whole number"
        )
    return token_id


def _check_agree(first: _Entry, other: _Entry) -> None:
    ids = {first.token_id, other.token_id} - {None}
    # `special` has no effect on ids.
    tokens = {replace(entry.token, special=False) for entry in (first, other)}
    if len(ids) > 1 or len(tokens) > 1:
        raise InputError(
            f"{other.place}: {other.token.content!r} has another id or `normalized` than in "
            f"{first.place}; expected the same"
        )


def _extend(
    vocab: Sequence[str], entries: Sequence[_Entry]
) -> tuple[list[str], tuple[UserToken, ...]]:
    ids = {token: index for index, token in enumerate(vocab)}
    new = [entry for entry in entries if entry.token.content not in ids]
    # Tokens without an id get the next ones, as in transformers.
    new.sort(key=lambda entry: float("inf") if entry.token_id is None else entry.token_id)
    extended = [*vocab, *(entry.token.content for entry in new)]
    ids = {token: index for index, token in enumerate(extended)}
    for entry in entries:
        index = ids[entry.token.content]
        if entry.token_id not in (None, index):
            raise InputError(
                f"{entry.place}: {entry.token.content!r} has the id {entry.token_id}; expected "
                f"{index}, as in the vocabulary or directly after it"
            )
    tokens = sorted((entry.token for entry in entries), key=lambda token: ids[token.content])
    return extended, tuple(tokens)
