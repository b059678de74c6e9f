"""Defines the settings of a dataset, and compares them with those of an existing dataset."""

import os
from dataclasses import dataclass, fields
from typing import Any

from data_tools.corpus import FIELD_FORMATS, Reading
from keras_bert.common import files
from keras_bert.common.errors import InputError
from keras_bert.data.record_files import NEXT_SENTENCE
from keras_bert.text.settings import USER_TOKENS, TokenizerSettings
from keras_bert.text.user_tokens import UserToken


@dataclass(frozen=True)
class Settings:
    """Settings of a dataset.

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
        input_format: file format of the corpus (`data_tools.corpus`).
        text_field: name of the JSON field or the column that holds the text.
        language: ISO 639-1 code of the language whose rules split text into sentences.
        max_bad_line_share: maximum fraction of undecodable or malformed lines per file.
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
    input_format: str = Reading.input_format
    text_field: str = Reading.text_field
    language: str = Reading.language
    max_bad_line_share: float = Reading.max_bad_line_share
    num_shards: int = 0
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    user_tokens: tuple[UserToken, ...] = ()
    max_input_chars_per_word: int = TokenizerSettings.max_input_chars_per_word

    def __post_init__(self) -> None:
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
        self.reading()  # its constructor checks the reading settings
        # The value of do_lower_case becomes None, so that equal settings compare equal.
        object.__setattr__(self, "strip_accents", self.tokenizer().strip_accents)
        object.__setattr__(self, USER_TOKENS, self.tokenizer().user_tokens)
        self._reject_options_without_effect()

    def _reject_options_without_effect(self) -> None:
        if self.text_field != Reading.text_field and self.input_format not in FIELD_FORMATS:
            raise InputError(
                f"--text_field={self.text_field} with --input_format={self.input_format}: "
                f"expected an --input_format of {', '.join(FIELD_FORMATS)}, the formats with a "
                "choice of fields"
            )
        if self.language != Reading.language and self.input_format == "sentences":
            raise InputError(
                f"--language={self.language} with --input_format=sentences: expected another "
                "--input_format, because a file with one sentence per line is not split"
            )

    def reading(self) -> Reading:
        """Returns the settings for reading the corpus."""
        return Reading(**{field.name: getattr(self, field.name) for field in fields(Reading)})

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


def reject_other_settings(
    output_dir: str, description: str, existing: dict[str, Any], requested: dict[str, Any]
) -> None:
    """Raises an `InputError` with the differences if a folder holds a dataset with other settings.

    `existing` and `requested` are manifests or plans with the keys settings, vocab and inputs.
    `description` is the error message's name for the existing dataset.
    """
    old, new = (
        {**TokenizerSettings().to_dict(), **each["settings"]} for each in (existing, requested)
    )
    if new["num_shards"] == 0:  # With 0, any existing number matches.
        new["num_shards"] = old["num_shards"]
    differences = [
        f"{name} was {old.get(name)!r}, now {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if existing["vocab"]["sha256"] != requested["vocab"]["sha256"]:
        differences.append("the vocabulary differs")
    differences += _input_differences(existing["inputs"], requested["inputs"])
    if differences:
        raise InputError(
            f"--output_dir={output_dir}: holds {description} with other settings or input: "
            f"{'; '.join(differences)}; expected the same flags, or another --output_dir"
        )


def _input_differences(
    existing: list[dict[str, Any]], requested: list[dict[str, Any]]
) -> list[str]:
    """Describes the first difference between two lists of input files, or returns [].

    Only the names and the contents of the files are compared, because the corpus may have been
    moved to another folder.
    """
    if len(existing) != len(requested):
        return [f"the number of input files was {len(existing)}, now {len(requested)}"]
    for old, new in zip(existing, requested, strict=True):
        old_name, new_name = os.path.basename(old["file"]), os.path.basename(new["file"])
        if (old_name, old["bytes"]) != (new_name, new["bytes"]):
            was = f"{old_name} ({old['bytes']} bytes)"
            return [f"input file was {was}, now {new_name} ({new['bytes']} bytes)"]
        if files.sha256(new["file"]) != old.get("sha256"):
            return [f"the content of input file {new['file']} has changed"]
    return []
