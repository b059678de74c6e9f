"""Defines the flags of the tokenizer's settings, which all data tools share."""

from dataclasses import fields
from typing import TypeVar

from absl.flags import FlagValues

from keras_bert.programs.flags import Definitions
from keras_bert.text.settings import USER_TOKENS, TokenizerSettings
from keras_bert.text.token_file import read_tokens

Settings = TypeVar("Settings")


def define_flags(define: Definitions) -> None:
    """Defines the flags, named like the fields of `TokenizerSettings`."""
    default = TokenizerSettings()
    define.boolean(
        "do_lower_case", default.do_lower_case, "Lower-case the text, for uncased models."
    )
    define.boolean(
        "strip_accents",
        default.strip_accents,
        'Strip accents: "\u00e9" becomes "e". Default: the value of --do_lower_case.',
    )
    define.boolean(
        "tokenize_chinese_chars",
        default.tokenize_chinese_chars,
        "Make each CJK ideograph a word of its own.",
    )
    define.string(
        USER_TOKENS,
        None,
        "File with your own tokens, one per line, such as [URL]: each of them is a single token "
        "wherever it occurs in the text.",
    )


def settings_of(kind: type[Settings], flags: FlagValues) -> Settings:
    """Returns an object of a dataclass whose fields are named like flags.

    Raises:
        InputError: the file of user tokens is not valid.
    """
    values = {field.name: flags[field.name].value for field in fields(kind) if field.name in flags}
    if USER_TOKENS in values:
        file = values[USER_TOKENS]
        values[USER_TOKENS] = () if file is None else tuple(read_tokens(file, USER_TOKENS))
    return kind(**values)
