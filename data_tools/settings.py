"""The settings of a dataset, and their flags."""

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from absl.flags import FlagValues

from data_tools.corpus import INPUT_FORMATS, Reading
from keras_bert.errors import InputError
from keras_bert.pretraining.settings import NEXT_SENTENCE
from keras_bert.programs.flags import Definitions
from keras_bert.text.settings import USER_TOKENS, TokenizerSettings, UserToken
from keras_bert.text.vocabulary import read_tokens

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Settings(Reading):
    """Settings of a dataset, including those for reading the corpus (`Reading`).

    The bytes of a dataset depend only on the settings, the corpus and the vocabulary. Settings that
    also exist in Google's BERT have the same names there. Invalid values raise an `InputError`.

    Attributes:
        do_lower_case: whether the tokenizer lower-cases text.
        do_whole_word_mask: whether all tokens of a word are masked together.
        ngram: masks runs of 1 to `ngram` tokens, or words with do_whole_word_mask.
        next_sentence: random: B follows A or comes from another document (BERT); order: A and B are
            consecutive or swapped (ALBERT); none: full sentences, no pairs (RoBERTa).
        dynamic: whether masks are drawn during training, so that one copy of the data is enough.
        pack: whether several short examples share a row.
        max_seq_length: S, number of tokens per row, including [CLS] and every [SEP].
        max_predictions_per_seq: P, maximum number of predicted tokens per row.
        random_seed: seed of all random draws.
        dupe_factor: number of times that each document is used, with different pairs and masks. The
            default None becomes 1 with `dynamic`, otherwise 10.
        masked_lm_prob: fraction of the tokens to predict.
        short_seq_prob: fraction of documents (of rows with next_sentence none) whose target length
            is below S.
        num_shards: number of output files; 0 derives it from the size of the corpus.
        strip_accents: whether the tokenizer strips accents; None for the value of do_lower_case.
        tokenize_chinese_chars: whether each CJK ideograph is a word of its own.
        user_tokens: tokens that stay whole, as strings or as `UserToken` objects.
        max_input_chars_per_word: a word of more characters becomes [UNK].
    """

    do_lower_case: bool = True
    do_whole_word_mask: bool = False
    ngram: int = 1
    next_sentence: str = "random"
    dynamic: bool = False
    pack: bool = False
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    random_seed: int = 12345
    dupe_factor: int | None = None
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    num_shards: int = 0
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    user_tokens: tuple[UserToken, ...] = ()
    max_input_chars_per_word: int = TokenizerSettings.max_input_chars_per_word

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dupe_factor is None:
            object.__setattr__(self, "dupe_factor", 1 if self.dynamic else 10)
        bounds = {
            # [CLS], both [SEP] and the shortest target, two tokens.
            "max_seq_length": (5, 65_536),
            "max_predictions_per_seq": (1, self.max_seq_length),
            "ngram": (1, self.max_predictions_per_seq),  # longer runs would never fit
            "random_seed": (-(2**63), 2**63 - 1),
            "dupe_factor": (1, 1000),
            "masked_lm_prob": (0, 1),
            "short_seq_prob": (0, 1),
            "num_shards": (0, 99999),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(f"--{name}={value}: expected from {low} to {high}")
        if self.next_sentence not in NEXT_SENTENCE:
            raise InputError(
                f"--next_sentence={self.next_sentence}: expected one of {', '.join(NEXT_SENTENCE)}"
            )
        # The value of do_lower_case becomes None, so that equal settings compare equal.
        tokenizer = self.tokenizer()
        object.__setattr__(self, "strip_accents", tokenizer.strip_accents)
        object.__setattr__(self, USER_TOKENS, tokenizer.user_tokens)

    def tokenizer(self) -> TokenizerSettings:
        """Returns the settings of the tokenizer."""
        return TokenizerSettings.of(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns {name: value} of all settings.

        The default of a tokenizer setting other than do_lower_case is omitted, as in the manifests
        of earlier versions.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= self.tokenizer().to_dict()
        omitted = {*TokenizerSettings().to_dict(), USER_TOKENS} - {"do_lower_case"}
        omitted -= self.tokenizer().non_default().keys()
        return {name: value for name, value in values.items() if name not in omitted}


# --- flags ---


def define_reading_flags(define: Definitions) -> None:
    """Defines --input_format, --text_field, --language and --max_bad_line_share."""
    default = Reading()
    define.enum(
        "input_format",
        default.input_format,
        INPUT_FORMATS,
        "sentences: one per line, a blank line between documents. prose: running text, a blank "
        "line between paragraphs, two or more (or a form feed) between documents. jsonl: one JSON "
        "object per line. wiki: output of WikiExtractor, as tags or JSON. gutenberg: books of "
        "Project Gutenberg. parquet, arrow: one document per row; arrow also reads the folders of "
        "Hugging Face's Dataset.save_to_disk. html, markdown, docx, pdf: one document per file. "
        "mixed: by the ending of each file's name; .txt is prose.",
    )
    define.string(
        "text_field",
        default.text_field,
        "Field or column that holds the document, for jsonl, parquet, arrow and mixed.",
    )
    define.string(
        "language",
        default.language,
        "Language code (such as en or zh) of the rules that split text into sentences.",
    )
    define.number(
        "max_bad_line_share",
        default.max_bad_line_share,
        "Fraction of the lines or rows of a file that may be undecodable or malformed; 0 rejects "
        "the first one.",
    )


def define_tokenizer_flags(define: Definitions) -> None:
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


def define_dataset_flags(define: Definitions) -> None:
    """Defines the flags of the other settings of a dataset."""
    default = Settings()
    define.boolean(
        "do_whole_word_mask", default.do_whole_word_mask, "Mask all tokens of a word together."
    )
    define.integer(
        "ngram",
        default.ngram,
        "Mask runs of up to this many tokens, or words with --do_whole_word_mask; a run of n has a "
        "probability proportional to 1/n.",
    )
    define.enum(
        "next_sentence",
        default.next_sentence,
        NEXT_SENTENCE,
        "random: predict whether B is the text after A (BERT). order: predict whether A and B are "
        "swapped (ALBERT). none: no pairs; rows are filled with sentences across document "
        "boundaries (RoBERTa).",
    )
    define.boolean(
        "dynamic",
        default.dynamic,
        "Store no masks; training generates new ones at every step.",
    )
    define.boolean("pack", default.pack, "Put several short examples in one row.")
    define.integer(
        "max_seq_length",
        default.max_seq_length,
        "Number of tokens per row, including special tokens.",
    )
    define.integer(
        "max_predictions_per_seq",
        default.max_predictions_per_seq,
        "Maximum number of tokens to predict per row.",
    )
    define.integer("random_seed", default.random_seed, "Random seed.", -(2**63), 2**63 - 1)
    define.integer(
        "dupe_factor",
        None,
        "How many times each document is used; the default is 10, or 1 with --dynamic.",
    )
    define.number("masked_lm_prob", default.masked_lm_prob, "Fraction of the tokens to predict.")
    define.number(
        "short_seq_prob",
        default.short_seq_prob,
        "Fraction of the documents with shorter examples.",
    )
    define.integer("num_shards", 0, "Number of output files; 0 derives it from the corpus size.")


def settings_of(kind: type[Kind], flags: FlagValues) -> Kind:
    """Returns an object of a dataclass whose fields are named like flags.

    Raises:
        InputError: the file of user tokens is not valid.
    """
    values = {field.name: flags[field.name].value for field in fields(kind) if field.name in flags}
    if USER_TOKENS in values:
        file = values[USER_TOKENS]
        values[USER_TOKENS] = () if file is None else tuple(read_tokens(file, USER_TOKENS))
    return kind(**values)
