"""Defines the user's own tokens, which stay whole in texts, such as [URL] or <ent>."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.common.files import value_of
from keras_bert.text.vocabulary import SPECIAL_TOKENS, unused_ids

_MAX_BYTES = 200  # So that the tokenizer's markers fit in the limits of tensorflow-text.
# Characters that Unicode will never assign; the tokenizer uses them for its own purposes.
_RESERVED = frozenset(map(chr, range(0xFDD0, 0xFDF0)))


@dataclass(frozen=True)
class UserToken:
    """A token that is a single token wherever it occurs in a text, also inside a word.

    Attributes:
        content: the text of the token.
        normalized: whether the token is searched for in the normalized text: then "[URL]" also
            matches "[url]" if the tokenizer lower-cases. Otherwise, only the exact text matches.
        special: whether transformers treats the token as a special token, which it can omit when it
            decodes ids. The ids of texts do not depend on it.

    Raises:
        InputError: the content is empty, too long, or contains white space or a reserved character.
    """

    content: str
    normalized: bool = False
    special: bool = False

    def __post_init__(self):
        problem = _problem(self.content)
        if problem:
            raise InputError(
                f"user token {self.content!r}: {problem}; expected up to {_MAX_BYTES} bytes of "
                "text without white space"
            )

    @classmethod
    def of(cls, value: "UserToken | str | Mapping[str, Any]") -> "UserToken":
        """Returns the token of a string, or of a mapping with the names of the attributes."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        return cls.read("user_tokens", value)

    @classmethod
    def read(cls, where: str | os.PathLike, value: Any) -> "UserToken":
        """Returns the token of an object in a JSON file; error messages start with `where`."""
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
            raise InputError(
                f'{where}: a user token is {value!r}; expected an object such as {{"content": '
                '"[URL]", "normalized": false, "special": false}'
            )
        flags = {name: value_of(where, value, name, bool, False) for name in _FLAGS}
        return cls(value["content"], **flags)

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes by name."""
        return asdict(self)


_FLAGS = ("normalized", "special")


def _problem(content: str) -> str | None:
    if not isinstance(content, str) or not content:
        return "is empty or not a string"
    if any(character.isspace() or character == "\0" for character in content):
        return "contains white space"
    if _RESERVED & {*content}:
        return "contains a character from U+FDD0 to U+FDEF"
    try:
        size = len(content.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return f"has {size} bytes" if size > _MAX_BYTES else None


def check_user_tokens(tokens: Sequence[UserToken]) -> None:
    """Raises an InputError if two tokens have the same content, or one is a special token."""
    for token in tokens:
        if token.content in SPECIAL_TOKENS:
            raise InputError(
                f"user token {token.content!r}: is a special token of BERT; expected another token"
            )
    counts = Counter(token.content for token in tokens)
    twice = next((text for text, count in counts.items() if count > 1), None)
    if twice is not None:
        raise InputError(f"user token {twice!r}: occurs twice; expected each token once")


def ids_of(
    tokens: Sequence[UserToken], vocab: Sequence[str], where: str = "vocabulary"
) -> list[int]:
    """Returns the id of each token; error messages start with `where`.

    Raises:
        InputError: a token is not in the vocabulary.
    """
    ids = {token: index for index, token in enumerate(vocab)}
    missing = [token.content for token in tokens if token.content not in ids]
    if missing:
        raise InputError(
            f"{where}: does not contain the user token {missing[0]!r}; expected all user tokens. "
            "build_vocab and convert add them with --user_tokens"
        )
    return [ids[token.content] for token in tokens]


def number_of_subwords(tokens: Sequence[UserToken], vocab: Sequence[str]) -> int:
    """Returns the number of tokens before the user tokens at the end of a vocabulary.

    WordPiece matches only these tokens. User tokens at other places, such as in place of [unusedN],
    are also subwords, as in transformers. [unusedN] may follow the user tokens.
    """
    if not tokens:
        return len(vocab)
    own = {token.content for token in tokens}
    unused = {*unused_ids(vocab)}
    size = end = len(vocab)
    while size and (size - 1 in unused or vocab[size - 1] in own):
        size -= 1
        end = size if vocab[size] in own else end
    return end
