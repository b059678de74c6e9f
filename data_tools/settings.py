"""The settings of a dataset: what is allowed, and whether two datasets are the same.

In: flag values, manifests. Out: `Settings` that are in bounds, or one line that says what is not.
"""

import os
from dataclasses import dataclass, fields
from typing import Any

from data_tools.corpus.documents import Reading
from keras_bert.common import files
from keras_bert.common.errors import InputError

NEXT_SENTENCE = ("random", "order", "none")


@dataclass(frozen=True)
class Settings:
    """What, with the corpus and the vocabulary, determines a dataset's bytes. Google's names.

    Attributes:
        do_lower_case: whether the tokenizer lower-cases and drops accents.
        do_whole_word_mask: whether all pieces of a word are masked together.
        ngram: masks runs of 1 to `ngram` pieces, or words with do_whole_word_mask.
        next_sentence: random: B follows A or comes from another document (BERT); order: A and B
            follow one another or are swapped (ALBERT); none: full sentences, no pairs (RoBERTa).
        dynamic: whether masks are left to training, so that one copy is enough.
        pack: whether several short examples share a row.
        max_seq_length: S, pieces in a row with [CLS] and every [SEP].
        max_predictions_per_seq: P, the most pieces a row predicts.
        random_seed: the seed.
        dupe_factor: how many times each document is used, with other pairs and masks. None, which
            becomes a number at once: 10, or 1 with `dynamic`.
        masked_lm_prob: share of the pieces to predict.
        short_seq_prob: share of documents (with next_sentence none, of rows) with a target length
            below S.
        input_format: how documents are read (`data_tools.corpus.documents`).
        text_field: the field of a JSON line that has the text.
        language: whose rules cut text into sentences.
        max_bad_line_share: share of a file's lines that may be undecodable or malformed.
        num_shards: files to write; 0 chooses by the corpus's size.
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

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            InputError: for the first one that is out of bounds or without effect.
        """
        if self.dupe_factor is None:
            object.__setattr__(self, "dupe_factor", 1 if self.dynamic else 10)
        bounds = {
            # [CLS], both [SEP] and the shortest target, two pieces.
            "max_seq_length": (5, 65_536),
            "max_predictions_per_seq": (1, self.max_seq_length),
            "ngram": (1, self.max_predictions_per_seq),  # a longer run would never fit
            "random_seed": (-(2**63), 2**63 - 1),
            "dupe_factor": (1, None),
            "masked_lm_prob": (0, 1),
            "short_seq_prob": (0, 1),
            "num_shards": (0, 99999),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not value >= low or (high is not None and not value <= high):
                allowed = f"at least {low}" if high is None else f"from {low} to {high}"
                raise InputError(f"--{name}={value}: expected {allowed}")
        if self.next_sentence not in NEXT_SENTENCE:
            raise InputError(
                f"--next_sentence={self.next_sentence}: expected one of {', '.join(NEXT_SENTENCE)}"
            )
        self.reading()  # checks its own
        self._refuse_what_has_no_effect()

    def _refuse_what_has_no_effect(self) -> None:
        if self.text_field != Reading.text_field and self.input_format != "jsonl":
            raise InputError(
                f"--text_field={self.text_field} with --input_format={self.input_format}: "
                "expected --input_format=jsonl, the only format that has fields to choose from"
            )
        if self.language != Reading.language and self.input_format == "sentences":
            raise InputError(
                f"--language={self.language} with --input_format=sentences: expected another "
                "--input_format, since a file with one sentence a line is not split"
            )

    def reading(self) -> Reading:
        """Returns how the corpus is read."""
        return Reading(**{field.name: getattr(self, field.name) for field in fields(Reading)})

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def refuse_other_settings(
    output_dir: str, what: str, made: dict[str, Any], asked: dict[str, Any]
) -> None:
    """Refuses to go on in a folder whose dataset was made otherwise.

    Args:
        output_dir: the folder.
        what: what is there, for the message.
        made: its manifest or plan: settings, vocab, inputs.
        asked: the same of this command.

    Raises:
        InputError: when they differ, with the differences.
    """
    had, wanted = made["settings"], dict(asked["settings"])
    if wanted["num_shards"] == 0:  # left open, so whatever was chosen is right
        wanted["num_shards"] = had.get("num_shards")
    differences = [
        f"{name} was {had.get(name)!r}, now {wanted.get(name)!r}"
        for name in sorted(had.keys() | wanted.keys())
        if had.get(name) != wanted.get(name)
    ]
    if made["vocab"]["sha256"] != asked["vocab"]["sha256"]:
        differences.append("the vocabulary differs")
    differences += _input_differences(made["inputs"], asked["inputs"])
    if differences:
        raise InputError(
            f"--output_dir={output_dir} holds {what} made otherwise: {'; '.join(differences)}. "
            "Give the same flags or another --output_dir"
        )


def _input_differences(had: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """Compares input files by name and content; a corpus may have moved to another folder."""
    if len(had) != len(now):
        return [f"input files were {len(had)}, now {len(now)}"]
    for old, new in zip(had, now, strict=True):
        old_name, new_name = os.path.basename(old["file"]), os.path.basename(new["file"])
        if (old_name, old["bytes"]) != (new_name, new["bytes"]):
            was, now_is = f"{old_name} ({old['bytes']} bytes)", f"{new_name} ({new['bytes']} bytes)"
            return [f"input file {was} is now {now_is}"]
        if files.sha256(new["file"]) != old.get("sha256"):
            return [f"input file {new['file']} has other content now"]
    return []
