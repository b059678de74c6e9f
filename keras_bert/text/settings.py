"""Defines the settings of the tokenizer besides the vocabulary."""

import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.common.files import value_of
from keras_bert.text.user_tokens import UserToken, check_user_tokens
from keras_bert.text.vocabulary import MAX_CHARS_PER_WORD

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

    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    user_tokens: tuple[UserToken, ...] = ()
    max_input_chars_per_word: int = MAX_CHARS_PER_WORD

    def __post_init__(self):
        tokens = tuple(map(UserToken.of, self.user_tokens))
        check_user_tokens(tokens)
        object.__setattr__(self, USER_TOKENS, tokens)
        limit = self.max_input_chars_per_word
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InputError(
                f"max_input_chars_per_word={limit!r}: expected a whole number of at least 1"
            )
        for field in _plain():
            if field.type is int:
                continue
            value, may_be_none = getattr(self, field.name), field.default is None
            if not isinstance(value, bool) and not (may_be_none and value is None):
                expected = "True, False or None" if may_be_none else "True or False"
                raise InputError(f"{field.name}={value!r}: expected {expected}")
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
    def of(cls, owner: Any) -> "TokenizerSettings":
        """Returns the settings that are attributes, of the same names, of another object.

        A missing attribute is the default.
        """
        return cls(
            **{field.name: getattr(owner, field.name, field.default) for field in fields(cls)}
        )

    def for_characters(self) -> "TokenizerSettings":
        """Returns the settings without user tokens, which do not affect single characters."""
        return replace(self, user_tokens=())

    @classmethod
    def read(
        cls, path: str | os.PathLike, content: Mapping[str, Any], do_lower_case: bool = True
    ) -> "TokenizerSettings":
        """Returns the settings in a JSON object that was read from `path`.

        A missing `do_lower_case` is the given value; other missing settings are the defaults.

        Raises:
            InputError: a value has the wrong type, or a user token is not valid.
        """
        defaults = {**cls().to_dict(), "do_lower_case": do_lower_case}
        values = {
            name: value_of(path, content, name, bool if value is None else type(value), value)
            for name, value in defaults.items()
        }
        tokens = content.get(USER_TOKENS) or []
        if not isinstance(tokens, list):
            raise InputError(f"{path}: {USER_TOKENS} is {tokens!r}; expected a list of objects")
        try:
            return cls(**values, user_tokens=[UserToken.read(path, token) for token in tokens])
        except InputError as error:
            where = "" if str(error).startswith(str(path)) else f"{path}: "
            raise InputError(f"{where}{error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Returns all settings by name, which are also the names of BertTokenizer's arguments.

        The values can be written as JSON. `user_tokens` are omitted if there are none.
        """
        values = {field.name: getattr(self, field.name) for field in _plain()}
        if self.user_tokens:
            values[USER_TOKENS] = [token.to_dict() for token in self.user_tokens]
        return values

    def non_default(self) -> dict[str, Any]:
        """Returns the settings besides `do_lower_case` that are not the default.

        Files that contain only these stay as they were before these settings existed.
        """
        defaults = TokenizerSettings(self.do_lower_case).to_dict()
        return {
            name: value for name, value in self.to_dict().items() if value != defaults.get(name)
        }


def _plain() -> list[Field]:
    """Returns the fields of the settings besides the user tokens."""
    return [field for field in fields(TokenizerSettings) if field.name != USER_TOKENS]
