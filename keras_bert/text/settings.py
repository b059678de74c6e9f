"""Defines the settings of the tokenizer, and the user's own tokens, such as [URL] or <ent>."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from keras_bert.errors import InputError
from keras_bert.files import check_schema
from keras_bert.options import advanced, check, option
from keras_bert.text.vocabulary import MAX_CHARS_PER_WORD, SPECIAL_TOKENS, unused_ids

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
    def of(cls, value: Any) -> "UserToken":
        """Returns the token of a string, or of a mapping with the names of the attributes."""
        if isinstance(value, (cls, str)):
            return value if isinstance(value, cls) else cls(value)
        check_schema("user_tokens:", value, _USER_TOKEN)
        return cls(value["content"], *(bool(value.get(name)) for name in ("normalized", "special")))

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes by name."""
        return asdict(self)


_USER_TOKEN = {"content": str, "normalized?": bool, "special?": bool}


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


def ids_of(
    tokens: Sequence[UserToken], vocab: Sequence[str], where: str = "vocabulary"
) -> list[int]:
    """Returns the id of each token; error messages start with `where`.

    Raises:
        InputError: a token is not in the vocabulary.
    """
    ids = {token: index for index, token in enumerate(vocab)} if tokens else {}
    for token in tokens:
        if token.content not in ids:
            raise InputError(
                f"{where}: does not contain the user token {token.content!r}; expected all user "
                "tokens, which keras-bert build-vocab and convert add with --user_tokens"
            )
    return [ids[token.content] for token in tokens]


def number_of_subwords(tokens: Sequence[UserToken], vocab: Sequence[str]) -> int:
    """Returns the number of tokens before the user tokens at the end of a vocabulary.

    WordPiece matches only these tokens. User tokens at other places, such as in place of [unusedN],
    are also subwords, as in transformers. [unusedN] may follow the user tokens.
    """
    if not tokens:
        return len(vocab)
    contents = {token.content for token in tokens}
    unused = {*unused_ids(vocab)}
    size = end = len(vocab)
    while size and (size - 1 in unused or vocab[size - 1] in contents):
        size -= 1
        end = size if vocab[size] in contents else end
    return end


# --- settings ---


USER_TOKENS = "user_tokens"


@dataclass(frozen=True)
class TokenizerSettings:
    """The rules by which the tokenizer normalizes and splits text.

    Settings with the same effect are equal: a `strip_accents` that has the value of `do_lower_case`
    becomes None.

    Attributes:
        do_lower_case: whether letters are lower-cased.
        strip_accents: whether accents are stripped; None for the value of `do_lower_case`.
        tokenize_chinese_chars: whether each CJK ideograph is a word of its own.
        user_tokens: the tokens that stay whole; strings, or mappings as from `UserToken.to_dict`,
            become `UserToken` objects.
        max_input_chars_per_word: a word of more characters becomes [UNK].

    Raises:
        InputError: a value has the wrong type, or a user token is not valid or occurs twice.
    """

    do_lower_case: bool = option(True, "Lower-case the text, for uncased models.")
    strip_accents: bool | None = advanced(
        None, 'Strip accents: "\u00e9" becomes "e". Default: the value of --do_lower_case.'
    )
    tokenize_chinese_chars: bool = advanced(True, "Make each CJK ideograph a word of its own.")
    user_tokens: tuple[UserToken, ...] = ()
    max_input_chars_per_word: int = option(MAX_CHARS_PER_WORD, min=1)

    def __post_init__(self):
        tokens = tuple(map(UserToken.of, self.user_tokens))
        object.__setattr__(self, USER_TOKENS, tokens)
        for token, count in Counter(token.content for token in tokens).items():
            if token in SPECIAL_TOKENS or count > 1:
                problem = "occurs twice" if count > 1 else "is a special token of BERT"
                raise InputError(f"user token {token!r}: {problem}; expected another token")
        check(self)
        if self.strip_accents == self.do_lower_case:
            object.__setattr__(self, "strip_accents", None)

    @property
    def strips_accents(self) -> bool:
        """Whether accents are stripped."""
        return self.do_lower_case if self.strip_accents is None else self.strip_accents

    def effective(self) -> dict[str, Any]:
        """Returns all settings by name, with the actual value of `strip_accents`."""
        return {**self.to_dict(), "strip_accents": self.strips_accents}

    @classmethod
    def read(
        cls, path: str | os.PathLike, content: Mapping[str, Any], do_lower_case: bool = True
    ) -> "TokenizerSettings":
        """Returns the settings in a JSON object that was read from `path`.

        A missing `do_lower_case` is the given value; other missing settings are the defaults.

        Raises:
            InputError: a value has the wrong type, or a user token is not valid.
        """
        names = [field.name for field in fields(cls)]
        kinds = {"max_input_chars_per_word": int, USER_TOKENS: [_USER_TOKEN]}
        schema = {f"{name}?": kinds.get(name, bool) for name in names}
        check_schema(f"{path}:", content, schema)
        values = {name: content[name] for name in names if content.get(name) is not None}
        try:
            return cls(**{"do_lower_case": do_lower_case} | values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Returns all settings by name, which are also the names of BertTokenizer's arguments.

        The values can be written as JSON. `user_tokens` are omitted if there are none.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tokens = [token.to_dict() for token in values.pop(USER_TOKENS)]
        return values | ({USER_TOKENS: tokens} if tokens else {})

    def non_default(self) -> dict[str, Any]:
        """Returns the settings besides `do_lower_case` that are not the default.

        Files that contain only these stay as they were before these settings existed.
        """
        defaults = TokenizerSettings(self.do_lower_case).to_dict()
        return {
            name: value for name, value in self.to_dict().items() if value != defaults.get(name)
        }
