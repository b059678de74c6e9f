"""Finds the causes of differences between two tokenizers, for the tests that compare them.

A cause is a set of characters. It explains the difference in a text if the tokenizers still differ
after the characters of all other causes were removed from the text. A text in which they differ
without any of these characters is unexplained. A capital sigma, whose lower case depends on its
place in the word, is not removed but replaced by σ.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

ALL = "all"
UNEXPLAINED = "unexplained"
COMBINED = "only several causes together"


class Part(NamedTuple):
    """The rest of a text in which only the characters of one cause, or of none, are left."""

    text: str
    cause: str
    index: int


def parts_by_cause(texts: Sequence[str], causes: Mapping[str, frozenset[str]]) -> list[Part]:
    """Returns, for each text, its rest without causes and its rest with each cause in it."""
    known = frozenset().union(*causes.values())
    parts = []
    for index, text in enumerate(texts):
        present = known & {*text}
        parts.append(Part(_without(text, present), UNEXPLAINED, index))
        for cause, characters in causes.items():
            if present & characters:
                parts.append(Part(_without(text, present - characters), cause, index))
    return parts


def count_by_cause(size: int, parts: Sequence[Part], differ: Sequence[bool]) -> Counter[str]:
    """Counts the texts that each cause explains; a text may have several causes.

    `size` is the number of texts that differ, and `differ` whether each part differs.
    """
    found = [part for part, is_different in zip(parts, differ, strict=True) if is_different]
    counts = Counter(part.cause for part in found)
    counts[COMBINED] = size - len({part.index for part in found})
    return +counts


def explain(
    differ: Callable[[Sequence[str]], Sequence[bool]],
    texts: Sequence[str],
    causes: Mapping[str, frozenset[str]],
) -> Counter[str]:
    """Counts by cause the texts for which `differ` returns true, and all of them."""
    different = [text for text, is_so in zip(texts, differ(texts), strict=True) if is_so]
    parts = parts_by_cause(different, causes)
    counts = count_by_cause(len(different), parts, differ([part.text for part in parts]))
    return counts + Counter({ALL: len(different)})


def _without(text: str, characters: frozenset[str]) -> str:
    return text.translate({ord(char): "σ" if char == "Σ" else None for char in characters})
