"""The settings of a dataset, and their flags."""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from absl.flags import FlagValues

from data_tools.corpus import Reading
from keras_bert.errors import InputError
from keras_bert.options import MAX_SEQ_LENGTH, advanced, from_values, option, same_as
from keras_bert.pretraining.settings import NEXT_SENTENCE
from keras_bert.programs.options import values_of
from keras_bert.text.settings import USER_TOKENS, TokenizerSettings, UserToken
from keras_bert.text.vocabulary import read_tokens

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Settings(Reading):
    """Settings of a dataset, including those for reading the corpus (`Reading`).

    The bytes of a dataset depend only on the settings, the corpus and the vocabulary. Settings that
    also exist in Google's BERT have the same names there. Invalid values raise an `InputError`.

    Attributes:
        user_tokens: tokens that stay whole, as strings or as `UserToken` objects.
        max_input_chars_per_word: a word of more characters becomes [UNK].
    """

    do_lower_case: bool = same_as(TokenizerSettings, "do_lower_case")
    do_whole_word_mask: bool = option(False, "Mask all tokens of a word together.")
    ngram: int = advanced(
        1,
        "Mask runs of up to this many tokens, or words with --do_whole_word_mask; a run of n has a "
        "probability proportional to 1/n.",
        min=1,
    )
    next_sentence: str = option(
        "random",
        "random: predict whether B is the text after A (BERT). order: predict whether A and B are "
        "swapped (ALBERT). none: no pairs; rows are filled with sentences across document "
        "boundaries (RoBERTa).",
        choices=NEXT_SENTENCE,
    )
    dynamic: bool = option(False, "Store no masks; training generates new ones at every step.")
    pack: bool = option(False, "Put several short examples in one row.")
    max_seq_length: int = option(
        128,  # At least [CLS], both [SEP] and the shortest target, two tokens.
        "Number of tokens per row, including special tokens.",
        min=5,
        max=MAX_SEQ_LENGTH,
    )
    max_predictions_per_seq: int = option(20, "Maximum number of tokens to predict per row.", min=1)
    random_seed: int = advanced(12345, "Random seed.", min=-(2**63), max=2**63 - 1)
    dupe_factor: int | None = option(
        None,
        "How many times each document is used, with different pairs and masks. Default: 10, or 1 "
        "with --dynamic.",
        min=1,
        max=1000,
    )
    masked_lm_prob: float = option(0.15, "Fraction of the tokens to predict.", min=0, max=1)
    short_seq_prob: float = advanced(
        0.1, "Fraction of the documents with shorter examples.", min=0, max=1
    )
    num_shards: int = advanced(
        0, "Number of output files; 0 derives it from the corpus size.", min=0, max=99_999
    )
    strip_accents: bool | None = same_as(TokenizerSettings, "strip_accents")
    tokenize_chinese_chars: bool = same_as(TokenizerSettings, "tokenize_chinese_chars")
    user_tokens: tuple[UserToken, ...] = ()
    max_input_chars_per_word: int = TokenizerSettings.max_input_chars_per_word

    def __post_init__(self) -> None:
        tokenizer = self.tokenizer()
        super().__post_init__()  # It checks the options.
        if self.dupe_factor is None:
            object.__setattr__(self, "dupe_factor", 1 if self.dynamic else 10)
        # Longer runs of predictions would never fit.
        limits = {"max_predictions_per_seq": "max_seq_length", "ngram": "max_predictions_per_seq"}
        for name, limit in limits.items():
            value, largest = getattr(self, name), getattr(self, limit)
            if value > largest:
                raise InputError(f"--{name}={value}: expected at most --{limit}={largest}")
        # The value of do_lower_case becomes None, so that equal settings compare equal.
        object.__setattr__(self, "strip_accents", tokenizer.strip_accents)
        object.__setattr__(self, USER_TOKENS, tokenizer.user_tokens)

    def tokenizer(self) -> TokenizerSettings:
        """Returns the settings of the tokenizer."""
        return from_values(TokenizerSettings, vars(self))

    def to_dict(self) -> dict[str, Any]:
        """Returns {name: value} of all settings; the values can be written as JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {USER_TOKENS: [token.to_dict() for token in self.user_tokens]}


# --- flags ---


@dataclass(frozen=True)
class CorpusOptions:
    """The files that the programs read."""

    GROUP: ClassVar[str] = "data"
    input_file: str = option(
        "", "Comma-separated list of text files, globs and folders.", required=True
    )
    vocab_file: str = option(
        "", "Vocabulary file with one token per line; build-vocab writes it.", required=True
    )
    user_tokens: str | None = option(
        None,
        "File with your own tokens, one per line, such as [URL]: each of them is a single token "
        "wherever it occurs in the text.",
    )


def settings_of(kind: type[Kind], flags: FlagValues) -> Kind:
    """Returns an object of a dataclass whose fields are named like flags."""
    values = values_of(flags)
    if USER_TOKENS in values:
        file = values[USER_TOKENS]
        values[USER_TOKENS] = () if file is None else tuple(read_tokens(file, USER_TOKENS))
    return from_values(kind, values)
