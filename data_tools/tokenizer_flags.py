"""Defines the flags of the tokenizer's settings, which all data tools share."""

from keras_bert.programs.flags import Definitions
from keras_bert.text.settings import TokenizerSettings


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
