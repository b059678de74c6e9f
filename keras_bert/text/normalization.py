r"""BERT's rules for one character, as a table that one tensorflow-text op applies to whole texts.

In: nothing but Python's `unicodedata`. Out: the bytes of a FastBertNormalizer model, a map from
each code point to the text that takes its place: nothing (controls, accents), a space (white
space), " x " (punctuation, CJK ideographs: words of their own), or lower case without accents.
What is left is words with spaces between. The op also maps offsets in its output back to its input.

tensorflow-text's own table follows other rules (NFKC folding, white space for controls); this one
asks Python the questions that Google's released tokenizer asks, so the answers are the same. It
asks about the characters of Unicode 14.0 only, so that the table does not depend on the version of
Python. The one rule that a table of single characters cannot hold is `final_sigma_pattern`.
"""

import functools
import struct
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

from keras_bert.text.unicode_14 import assigned_characters

_CJK_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

_BLOCK = 64  # the children of one byte: the UTF-8 continuation bytes 0x80 to 0xBF
_REPLACED = 1 << 30  # on a value of the trie: the character is replaced
_IS_VALUE = 1 << 31  # on a unit of the trie: it holds a value
_HAS_VALUE = 1 << 8  # on a unit of the trie: a character ends here


def normalize_character(char: str, do_lower_case: bool) -> str:
    """Says what BERT reads in place of one character.

    Args:
        char: one character.
        do_lower_case: lower-case it and strip its accents.

    Returns:
        Text of any length, with a space on both sides of each word of its own.
    """
    if _is_dropped(char):
        return ""
    if char.isspace():
        return " "
    text = char
    if do_lower_case:
        parts = unicodedata.normalize("NFD", char.lower())
        text = "".join(part for part in parts if unicodedata.category(part) != "Mn")
    if _is_cjk(char):
        return f" {text} "
    return "".join(f" {part} " if _is_punctuation(part) else part for part in text)


def _is_dropped(char: str) -> bool:
    return char in "\0\ufffd" or (
        unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r"
    )


def _is_punctuation(char: str) -> bool:
    return char in _ASCII_PUNCTUATION or unicodedata.category(char).startswith("P")


def _is_cjk(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _CJK_RANGES)


@functools.cache
def _characters() -> list[str]:
    """Lists every character that a rule may change: the assigned ones and the CJK blocks."""
    no_rule = ("Co", "Cs")  # Private use and surrogates.
    assigned = list(assigned_characters())
    cjk = (chr(c) for first, last in _CJK_RANGES for c in range(first, last + 1))
    return [
        *(char for char in assigned if unicodedata.category(char) not in no_rule),
        *sorted({*cjk} - {*assigned}),
    ]


@functools.cache
def final_sigma_pattern() -> str:
    r"""Builds the RE2 pattern of a capital sigma that `str.lower` turns into the final one.

    That is a sigma after a cased letter and not before one; case-ignorable characters in between
    do not count, nor do those that BERT drops. Python does not publish the two properties, so they
    are read off `str.lower` itself. The replacement `\1ς\2` has as many bytes as the match.
    """
    before, ignored = [], []
    for char in _characters():
        if _is_dropped(char):
            ignored.append(char)
        elif (char + "Σ").lower().endswith("ς"):
            before.append(char)
        elif ("a" + char + "Σ").lower().endswith("ς"):
            ignored.append(char)
    cased, ignorable = _ranges(before), _ranges(ignored)
    return rf"([{cased}][{ignorable}]*)Σ([{ignorable}]*(?:[^{cased}{ignorable}]|$))"


def _ranges(chars: Iterable[str]) -> str:
    """Writes characters, in rising order, as the inside of an RE2 character class."""
    runs: list[list[int]] = []
    for code_point in map(ord, chars):
        if runs and code_point == runs[-1][1] + 1:
            runs[-1][1] = code_point
        else:
            runs.append([code_point, code_point])
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in runs)


def _replacements(do_lower_case: bool, own_words: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields each character that changes, with what takes its place, both in UTF-8."""
    for char in own_words:
        yield char.encode(), f" {char} ".encode()
    for char in _characters():
        text = normalize_character(char, do_lower_case)
        if text != char:
            yield char.encode(), text.encode()


@functools.cache
def normalizer_model(do_lower_case: bool, own_words: str = "") -> bytes:
    """Builds the table in the format of `tensorflow_text.FastBertNormalizer(model_buffer=...)`.

    The op looks a character's UTF-8 bytes up in a double-array trie: from the unit at position p,
    byte b leads to the unit at `p ^ offset(unit) ^ b`, whose label must be b; where a character
    ends, the unit at `p ^ offset(unit)` holds its value: place and length in the pool of texts.

    Args:
        do_lower_case: lower-case and strip accents.
        own_words: unassigned characters to put spaces around.

    Returns:
        The model's bytes.
    """
    pool, places = bytearray(), {}
    # Position 0 is the root; its children, the first bytes, lie in positions 256 to 511.
    units = [256 << 10] + [0] * 511
    blocks: dict[bytes, int] = {}
    values: list[tuple[int, int]] = []
    for key, text in _replacements(do_lower_case, own_words):
        if text not in places:
            places[text] = len(pool)
            pool += text
        value = _IS_VALUE | _REPLACED | places[text] << 6 | len(text)
        if key == b"\0":
            null_value = value & ~_IS_VALUE  # no key of the trie can hold byte 0
            continue
        position = 256 + key[0]
        units[position] |= key[0]
        for end in range(1, len(key)):
            block = blocks.setdefault(key[:end], len(units))
            if block == len(units):
                units += [0] * _BLOCK
                # Byte 0x80 leads to the block's first unit.
                units[position] |= (position ^ block ^ 0x80) << 10
            position = block + key[end] - 0x80
            units[position] |= key[end]
        values.append((position, value))
    for position, value in values:
        units[position] |= (position ^ len(units)) << 10 | _HAS_VALUE
        units.append(value)
    trie = np.array(units, "<u4")
    return _flatbuffer(do_lower_case, trie.tobytes(), null_value, bytes(pool))


def _flatbuffer(do_lower_case: bool, trie: bytes, null_value: int, pool: bytes) -> bytes:
    """Lays the four fields out as tensorflow-text's `fast_bert_normalizer_model.fbs` says."""
    # root offset 16; at 4 the vtable: its size, the table's size, each field's place in the table
    header = struct.pack("<I6H", 16, 12, 20, 7, 8, 12, 16)
    # at 16 the table: distance to the vtable, flag, offset of the trie, value of U+0000, offset of
    # the pool; an offset counts from its own place
    table = struct.pack("<i3xBIII", 12, do_lower_case, 12, null_value, 4 + 4 + len(trie))
    vectors = struct.pack("<I", len(trie) // 4) + trie + struct.pack("<I", len(pool)) + pool
    return header + table + vectors
