"""Each difference from the `tokenizers` library on hard strings has a documented cause.

docs/concepts/tokenizer.md has the counts. A cause is a set of characters. It explains a difference
in a text if the tokenizers still differ after the characters of all other causes were removed from
the text. A text in which they differ without any of these characters is unexplained. A capital
sigma, whose lower case depends on its place in the word, is not removed but replaced by σ.
"""

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from keras_bert.text.normalization import assigned_characters
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS
from tests.checkpoints.test_tokenizer_json import (
    SETTINGS,
    different_texts,
    open_in_tokenizers,
    vocab_of,
)
from tests.golden.make_tokenizer_golden import hard_strings

ALL, UNEXPLAINED, COMBINED = "all", "unexplained", "only several causes together"
PRIVATE, IDEOGRAPHS, UNASSIGNED = "private use", "ideographs", "not in Unicode 14.0"
SYMBOLS, ACCENTS, CHANGED = "symbols", "accents", "U+1734, U+11938"
SIGMA, ORDER = "final sigma", "order of marks"
CAUSES = (ALL, PRIVATE, ACCENTS, SIGMA, IDEOGRAPHS, SYMBOLS, UNASSIGNED, ORDER, CHANGED)
# do_lower_case, whether accents are stripped, tokenize_chinese_chars -> texts that differ.
COUNTS = {
    (True, True, True): (10471, 6101, 2750, 1371, 601, 170, 89, 13, 5),
    (True, True, False): (10011, 6101, 2750, 1369, 0, 185, 89, 13, 5),
    (True, False, True): (7989, 6101, 0, 1371, 650, 183, 89, 0, 0),
    (True, False, False): (7490, 6101, 0, 1369, 0, 190, 89, 0, 0),
    (False, True, True): (9237, 6101, 2750, 0, 601, 170, 0, 13, 5),
    (False, True, False): (8769, 6101, 2750, 0, 0, 185, 0, 13, 5),
    (False, False, True): (6747, 6101, 0, 0, 650, 183, 0, 0, 0),
    (False, False, False): (6239, 6101, 0, 0, 0, 190, 0, 0, 0),
}
# The number of characters in each cause that consists of them.
SIZES = {ACCENTS: 383, IDEOGRAPHS: 256, SYMBOLS: 119, UNASSIGNED: 55, CHANGED: 2}


def explain(
    differ: Callable[[Sequence[str]], Sequence[bool]],
    texts: Sequence[str],
    causes: Mapping[str, frozenset[str]],
) -> Counter[str]:
    """Counts by cause the texts for which `differ` returns true, and all of them.

    A text may have several causes.
    """
    different = [text for text, is_so in zip(texts, differ(texts), strict=True) if is_so]
    known = frozenset().union(*causes.values())
    parts = []  # (the rest of a text with only the characters of one cause or none, cause, index)
    for index, text in enumerate(different):
        present = known & {*text}
        parts.append((_without(text, present), UNEXPLAINED, index))
        for cause, characters in causes.items():
            if present & characters:
                parts.append((_without(text, present - characters), cause, index))
    are_different = differ([rest for rest, _, _ in parts])
    explained = [part for part, is_so in zip(parts, are_different, strict=True) if is_so]
    counts = Counter(cause for _, cause, _ in explained)
    counts[ALL] = len(different)
    counts[COMBINED] = len(different) - len({index for _, _, index in explained})
    return +counts


def _without(text: str, characters: frozenset[str]) -> str:
    return text.translate({ord(char): "σ" if char == "Σ" else None for char in characters})


@functools.cache
def hard_texts() -> list[str]:
    """Returns the hard strings that are valid UTF-8 and without special tokens."""
    special = [token.encode() for token in SPECIAL_TOKENS]
    texts = []
    for string in hard_strings():
        try:
            text = string.decode()
        except UnicodeDecodeError:
            continue
        if not any(token in string for token in special):
            texts.append(text)
    return texts


@functools.cache
def vocab() -> list[str]:
    """Returns a vocabulary with each character of the texts, so that [UNK] hides no difference."""
    # tensorflow-text does not allow U+0000 in a vocabulary. No normalized text contains it.
    return [token for token in vocab_of(hard_texts()) if "\0" not in token]


class Comparison:
    """Compares the ids of the two libraries for one combination of settings."""

    def __init__(self, settings: TokenizerSettings):
        self.settings = settings
        self._ours = BertTokenizer(vocab(), **settings.to_dict())
        self._theirs = open_in_tokenizers(vocab(), *_rules(settings.to_dict()))

    def differ(self, texts: Sequence[str]) -> list[bool]:
        """Returns for each text whether the libraries compute different ids."""
        found = {*different_texts(self._ours, self._theirs, texts)}
        return [text in found for text in texts]

    def causes(self) -> dict[str, frozenset[str]]:
        """Returns the characters of each cause, among those of the hard strings."""
        characters = sorted({*"".join(hard_texts())})
        alone = self.differ([f"a{character}b" for character in characters])
        found = {character for character, is_so in zip(characters, alone, strict=True) if is_so}
        causes = {}
        for character in found:
            causes.setdefault(self._cause_of(character), set()).add(character)
        if self.settings.do_lower_case:
            causes[SIGMA] = {"Σ"}
        if self.settings.strips_accents:
            causes[ORDER] = {c for c in characters if _keeps_mark(c)} - found
        return {cause: frozenset(members) for cause, members in causes.items()}

    def _cause_of(self, character: str) -> str:
        """Returns the cause of a difference that a character makes alone."""
        if unicodedata.category(character) == "Co":
            return PRIVATE
        if self.settings.tokenize_chinese_chars and "\U0002b820" <= character <= "\U0002b91f":
            return IDEOGRAPHS
        if character not in _assigned():
            return UNASSIGNED
        if self.settings.strips_accents and character in "\u1734\U00011938":
            return CHANGED
        # U+111C9 was punctuation in Unicode 8.0, so it differs with all settings.
        is_accent = unicodedata.category(character) == "Mn" and character != "\U000111c9"
        if self.settings.strips_accents and is_accent:
            return ACCENTS
        return SYMBOLS


def _rules(settings: Mapping[str, Any]) -> tuple:
    """Returns do_lower_case, strip_accents and tokenize_chinese_chars."""
    return tuple(settings.values())[:3]


@functools.cache
def _assigned() -> frozenset[str]:
    return frozenset(assigned_characters())


def _keeps_mark(character: str) -> bool:
    """Returns whether a mark with a combining class remains after accents are stripped."""
    parts = unicodedata.normalize("NFD", character)
    return any(unicodedata.combining(c) and unicodedata.category(c) != "Mn" for c in parts)


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
def test_differences_have_known_causes(settings):
    comparison = Comparison(TokenizerSettings(*settings))
    causes = comparison.causes()
    for cause in SIZES.keys() & causes.keys():
        assert len(causes[cause]) == SIZES[cause], cause
    counts = explain(comparison.differ, hard_texts(), causes)
    expected = COUNTS[_rules(comparison.settings.effective())]
    assert counts == Counter(dict(zip(CAUSES, expected, strict=True)))
    assert len(hard_texts()) == 36_141
