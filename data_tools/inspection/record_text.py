"""Formats examples as readable text that shows the predictions.

    [MASK→cat]  the token was replaced by [MASK]
    [dog→cat]   the token was replaced by a random one
    [=cat]      the token was kept, but is predicted

Segment B is in italics.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from data_tools.inspection.record_batches import Batch
from keras_bert.text.normalization import normalize_character
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import SPECIAL_TOKENS

# ANSI escape codes: select graphic rendition.
_STYLES = {
    "hidden": "\033[36m",
    "random": "\033[31m",
    "kept": "\033[32m",
    "b": "\033[3m",
    "special": "\033[2m",
    "title": "\033[1m",
}
_RESET = "\033[0m"

# The tokenizer drops spaces around punctuation. These rules restore the most likely ones.
_NO_SPACE_BEFORE = frozenset(".,;:!?)]}%'’”…»、。，！？：；」』）》")
_NO_SPACE_AFTER = frozenset("([{“$«、。，！？：；「『（《")
_AFTER_APOSTROPHE = frozenset(("s", "t", "d", "m", "ll", "re", "ve", "S", "T"))
_LABELS = {
    "random": ("B follows A", "B is a random text"),
    "order": ("in order", "swapped"),
    "none": None,
    None: ("next sentence 0", "next sentence 1"),
}


def describe(
    batch: Batch, row: int, vocab: list[str], next_sentence: str | None, color: bool
) -> Iterator[str]:
    """Yields lines of text that show the examples of one row of a batch.

    `vocab` are the tokens of the vocabulary. `next_sentence` is the setting that the pairs were
    created with (`Settings`), or None if it is not known.
    """
    paint = _paint if color else lambda text, _: text
    predicted = _predicted_ids(batch, row)
    first = int(batch.examples_per_row[:row].sum())
    for number in range(int(batch.examples_per_row[row])):
        here = batch.is_real[row]
        title = f"{batch.file} record {batch.first_row + row}"
        if batch.is_packed:
            here = batch.features["example_ids"][row] == number + 1
            title += f", example {number + 1} of {batch.examples_per_row[row]}"
        columns = np.flatnonzero(here)
        notes = [f"{len(columns)} tokens"]
        notes.append(
            f"{sum(column in predicted for column in columns.tolist())} to predict"
            if batch.has_masks
            else "masks are generated during training"
        )
        if (labels := _LABELS[next_sentence]) is not None:
            notes.append(labels[batch.next_sentence_labels[first + number]])
        yield paint(f"{title}: {', '.join(notes)}", "title")
        for segment, name in ((0, "A"), (1, "B")):
            of_segment = columns[batch.features["segment_ids"][row, columns] == segment].tolist()
            if of_segment:
                ids = batch.features["input_ids"][row]
                tokens = [(vocab[ids[column]], predicted.get(column)) for column in of_segment]
                text = _join(
                    [(now, None if label is None else vocab[label]) for now, label in tokens],
                    color,
                    "b" if segment else "",
                )
                yield f"  {name}: {text}"


def _predicted_ids(batch: Batch, row: int) -> dict[int, int]:
    """Returns {column: original token id} of the predictions in a row."""
    if not batch.has_masks:
        return {}
    names = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    values = [batch.features[name][row].tolist() for name in names]
    return {column: label for column, label, weight in zip(*values, strict=True) if weight}


def _paint(text: str, style: str) -> str:
    return f"{_STYLES[style]}{text}{_RESET}" if style else text


def _join(tokens: list[tuple[str, str | None]], color: bool, style: str) -> str:
    """Joins tokens to text; `tokens` are (token in the record, original token if predicted)."""
    parts: list[tuple[str, str]] = []
    before = None
    for now, label in tokens:
        # Spaces depend on the original words, not on their replacements.
        original = now if label is None else label
        if before is not None and _is_spaced(before, original):
            parts.append((" ", style))
        before = original
        shown, kind = _mark(now, label, joins=bool(parts))
        is_special = label is None and now in SPECIAL_TOKENS
        parts.append((shown, kind or ("special" if is_special else style)))
    if not color:
        return "".join(text for text, _ in parts)
    runs = itertools.groupby(parts, key=lambda part: part[1])
    return "".join(_paint("".join(text for text, _ in run), painted) for painted, run in runs)


def _mark(now: str, label: str | None, joins: bool) -> tuple[str, str]:
    """Formats a token `now` of a record; returns the text, and a style or "".

    `label` is the original token if it is predicted, else None. `joins` is whether there is text
    before the token, so that ## is omitted.
    """
    word = (label if label is not None else now).removeprefix("##" if joins else "")
    if label is None:
        return word, ""
    if now == label:
        return f"[={word}]", "kept"
    return (f"[MASK→{word}]", "hidden") if now == "[MASK]" else (f"[{now}→{word}]", "random")


def _is_spaced(before: str, token: str) -> bool:
    if token.startswith("##"):
        return False
    if token in _NO_SPACE_BEFORE or before in _NO_SPACE_AFTER:
        return False
    if before in ("'", "’") and token in _AFTER_APOSTROPHE:
        return False
    return not (_is_unspaced(before[-1]) and _is_unspaced(token[0]))


def _is_unspaced(character: str) -> bool:
    """Returns whether a character belongs to Chinese or Japanese text, which has no spaces."""
    cased = TokenizerSettings(do_lower_case=False)
    return (
        "\u3001" <= character <= "\u30ff"  # punctuation and kana
        or "\uff01" <= character <= "\uff65"  # full-width punctuation
        or (character.isalpha() and normalize_character(character, cased) != character)
    )
