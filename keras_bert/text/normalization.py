"""Builds the character table of BERT's text normalization, for tensorflow-text.

Python's `unicodedata` defines the table, as in Google's released tokenizer; the built-in table of
tensorflow-text follows other rules. The table covers the characters of Unicode 14.0, so it is the
same with every Python version. One rule is not in the table, because it depends on neighboring
characters: `final_sigma_pattern`.
"""

import functools
import struct
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

from keras_bert.text.settings import TokenizerSettings
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
_REPLACED = 1 << 30  # flag of a value: the character is replaced
_IS_VALUE = 1 << 31  # flag of a trie unit: the unit holds a value
_HAS_VALUE = 1 << 8  # flag of a trie unit: a character ends here


def normalize_character(char: str, settings: TokenizerSettings) -> str:
    """Returns the text that replaces one character in BERT's normalization.

    Control characters are removed, and white space becomes " ". Spaces are added around
    punctuation, which becomes words of its own. The settings determine whether the same holds for
    CJK ideographs, and whether characters are lower-cased and lose their accents.
    """
    if _is_dropped(char):
        return ""
    if char.isspace():
        return " "
    text = char
    if settings.do_lower_case:
        text = text.lower()
    if settings.strips_accents:
        parts = unicodedata.normalize("NFD", text)
        text = "".join(part for part in parts if unicodedata.category(part) != "Mn")
    if settings.tokenize_chinese_chars and _is_cjk(char):
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
    """Lists the characters that normalization may change: assigned ones and the CJK blocks."""
    no_rule = ("Co", "Cs")  # Private use and surrogates.
    assigned = list(assigned_characters())
    cjk = (chr(c) for first, last in _CJK_RANGES for c in range(first, last + 1))
    return [
        *(char for char in assigned if unicodedata.category(char) not in no_rule),
        *sorted({*cjk} - {*assigned}),
    ]


@functools.cache
def final_sigma_pattern() -> str:
    r"""Builds the RE2 pattern of the capital sigmas that `str.lower` turns into final sigmas.

    A sigma is final if a cased letter precedes it and no cased letter follows it. Between the
    letters, case-ignorable characters and the characters that BERT drops are skipped. Python does
    not expose which characters are cased or case-ignorable, so this is derived from the results of
    `str.lower`. The replacement `\1ς\2` has as many bytes as the match.
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
    """Formats characters, sorted by code point, as the inside of an RE2 character class."""
    runs: list[list[int]] = []
    for code_point in map(ord, chars):
        if runs and code_point == runs[-1][1] + 1:
            runs[-1][1] = code_point
        else:
            runs.append([code_point, code_point])
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in runs)


def _replacements(settings: TokenizerSettings, own_words: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields each character that changes and its replacement, both in UTF-8."""
    for char in own_words:
        yield char.encode(), f" {char} ".encode()
    for char in _characters():
        text = normalize_character(char, settings)
        if text != char:
            yield char.encode(), text.encode()


@functools.cache
def normalizer_model(settings: TokenizerSettings, own_words: str = "") -> bytes:
    """Builds the character table in the format of `FastBertNormalizer(model_buffer=...)`.

    The table is a double-array trie over the UTF-8 bytes of a character. From the unit at position
    p, byte b leads to the unit at `p ^ offset(unit) ^ b`, whose label must be b. At the end of a
    character, the unit at `p ^ offset(unit)` holds the position and length of the replacement in a
    pool of texts. `own_words` are unassigned characters that become words of their own.
    """
    pool, places = bytearray(), {}
    # Position 0 is the root. Its children, one for each first byte, are at positions 256 to 511.
    units = [256 << 10] + [0] * 511
    blocks: dict[bytes, int] = {}
    values: list[tuple[int, int]] = []
    for key, text in _replacements(settings, own_words):
        if text not in places:
            places[text] = len(pool)
            pool += text
        value = _IS_VALUE | _REPLACED | places[text] << 6 | len(text)
        if key == b"\0":
            null_value = value & ~_IS_VALUE  # keys of the trie cannot contain byte 0
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
    return _flatbuffer(settings.strips_accents, trie.tobytes(), null_value, bytes(pool))


def _flatbuffer(strips_accents: bool, trie: bytes, null_value: int, pool: bytes) -> bytes:
    """Encodes the fields in the layout of tensorflow-text's `fast_bert_normalizer_model.fbs`."""
    # The offset of the table (16), then at byte 4 the vtable, which consists of its size, the size
    # of the table, and the offset of each field in the table.
    header = struct.pack("<I6H", 16, 12, 20, 7, 8, 12, 16)
    # The table at byte 16 consists of the distance to the vtable, the flag, the offset of the trie,
    # the value of U+0000 and the offset of the pool. Each offset is relative to its own position.
    table = struct.pack("<i3xBIII", 12, strips_accents, 12, null_value, 4 + 4 + len(trie))
    vectors = struct.pack("<I", len(trie) // 4) + trie + struct.pack("<I", len(pool)) + pool
    return header + table + vectors
