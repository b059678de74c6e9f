"""Builds the character table of BERT's text normalization, for tensorflow-text.

Python's `unicodedata` defines the table, as in Google's released tokenizer; the built-in table of
tensorflow-text follows other rules. The table covers the characters of Unicode 14.0, so it is the
same with every Python version. One rule is not in the table, because it depends on neighboring
characters: `final_sigma_pattern`.
"""

import functools
import re
import struct
import unicodedata
from collections.abc import Iterable, Iterator

import numpy as np

from keras_bert.text.settings import TokenizerSettings

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
_CJK = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _CJK_RANGES)}]")
ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")

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
    return char in ASCII_PUNCTUATION or unicodedata.category(char).startswith("P")


def _is_cjk(char: str) -> bool:
    return _CJK.match(char) is not None


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


def _replacements(settings: TokenizerSettings) -> Iterator[tuple[bytes, bytes]]:
    """Yields each character that changes and its replacement, both in UTF-8."""
    for char in _characters():
        # Most characters are ideographs, and have no case and no accents.
        if _is_cjk(char) and not unicodedata.decomposition(char):
            text = f" {char} " if settings.tokenize_chinese_chars else char
        else:
            text = normalize_character(char, settings)
        if text != char:
            yield char.encode(), text.encode()


@functools.cache
def normalizer_model(settings: TokenizerSettings) -> bytes:
    """Builds the character table in the format of `FastBertNormalizer(model_buffer=...)`.

    The table is a double-array trie over the UTF-8 bytes of a character. From the unit at position
    p, byte b leads to the unit at `p ^ offset(unit) ^ b`, whose label must be b. At the end of a
    character, the unit at `p ^ offset(unit)` holds the position and length of the replacement in a
    pool of texts.
    """
    pool, offsets = bytearray(), {}
    # Position 0 is the root. Its children, one for each first byte, are at positions 256 to 511.
    units = [256 << 10] + [0] * 511
    blocks: dict[bytes, int] = {}
    values: list[tuple[int, int]] = []
    for key, text in _replacements(settings):
        if text not in offsets:
            offsets[text] = len(pool)
            pool += text
        value = _IS_VALUE | _REPLACED | offsets[text] << 6 | len(text)
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


# --- Unicode 14 ---


# Lengths of alternating runs of unassigned and assigned code points, starting at code point 0: the
# runs in [unicodedata.category(chr(i)) != "Cn" for i in range(0x110000)] of Python 3.11.
_RUNS = """
    0 888 2 6 4 7 1 1 1 20 1 397 1 38 2 50 2 3 1 55 8 27 4 6 11 270 1 60 2 101 14 59 2 49 2 15 1
    28 2 1 1 11 5 31 1 2 6 236 1 8 2 2 2 22 1 7 1 1 3 4 2 9 2 2 2 4 8 1 4 2 1 5 2 25 2 3 1 6 4 2
    2 22 1 7 1 2 1 2 1 2 2 1 1 5 4 2 2 3 3 1 7 4 1 1 7 17 10 3 1 9 1 3 1 22 1 7 1 2 1 5 2 10 1 3
    1 3 2 1 15 4 2 12 7 7 1 3 1 8 2 2 2 22 1 7 1 2 1 5 2 9 2 2 2 3 7 3 4 2 1 5 2 18 10 2 1 6 3 3
    1 4 3 2 1 1 1 2 3 2 3 3 3 12 4 5 3 3 1 4 2 1 6 1 14 21 5 13 1 3 1 23 1 16 2 9 1 3 1 4 7 2 1
    3 2 1 2 4 2 10 7 22 1 3 1 23 1 10 1 5 2 9 1 3 1 4 7 2 6 2 1 4 2 10 1 2 13 13 1 3 1 51 1 3 1
    6 4 16 2 26 1 3 1 18 3 24 1 9 1 1 2 7 3 1 4 6 1 1 1 8 6 10 2 3 12 58 4 29 37 2 1 1 1 5 1 24
    1 1 1 23 2 5 1 1 1 6 2 10 2 4 32 72 1 36 4 39 1 36 1 15 1 13 37 198 1 1 5 1 2 377 1 4 2 7 1
    1 1 4 2 41 1 4 2 33 1 4 2 7 1 1 1 4 2 15 1 57 1 4 2 67 2 32 3 26 6 86 2 6 2 669 3 89 7 22 9
    24 9 20 12 13 1 3 1 2 12 94 2 10 6 10 6 26 6 89 7 43 5 70 10 31 1 12 4 12 4 1 3 42 2 5 11 44
    4 26 6 11 3 62 2 65 1 29 2 11 6 10 6 14 2 31 49 77 3 47 1 116 8 60 3 15 3 60 7 43 2 11 8 43
    5 534 2 6 2 38 2 6 2 8 1 1 1 1 1 1 1 31 2 53 1 15 1 14 2 6 1 19 2 3 1 9 1 101 1 12 2 27 1 13
    3 33 15 33 15 140 4 663 25 11 21 1812 2 32 1 349 5 45 1 1 5 1 2 56 7 2 14 24 9 7 1 7 1 7 1 7
    1 7 1 7 1 7 1 7 1 126 34 26 1 89 12 214 26 12 4 64 1 86 2 103 5 43 1 94 1 84 12 47 1 29293 3
    55 9 348 20 184 8 203 5 2 1 1 1 5 24 59 3 10 6 56 8 70 8 12 6 116 11 30 3 78 1 11 4 33 1 55
    9 14 2 10 2 103 24 28 10 6 2 6 2 6 9 7 1 7 1 60 4 126 2 10 6 11172 12 23 4 49 4 8814 2 106
    38 7 12 5 5 26 1 5 1 1 1 2 1 2 1 125 16 445 2 54 7 1 32 42 6 51 1 19 1 4 4 5 1 135 2 1 1 190
    3 6 2 6 2 6 2 3 3 7 1 7 10 5 2 12 1 26 1 19 1 2 1 15 2 14 34 123 5 3 4 45 3 88 1 13 3 1 47
    46 130 29 3 49 15 28 4 36 9 30 5 43 5 30 1 37 4 14 42 158 2 10 6 36 4 36 4 40 8 52 11 12 1
    15 1 7 1 2 1 11 1 15 1 7 1 2 67 311 9 22 10 8 24 6 1 42 1 9 69 6 2 1 1 44 1 2 3 1 2 23 1 72
    8 9 48 19 1 2 5 33 3 27 5 1 64 56 4 20 2 50 1 2 5 8 1 3 1 29 2 3 4 10 7 9 7 64 32 39 4 12 9
    54 3 29 2 27 5 26 7 4 12 7 80 73 55 51 13 51 7 46 8 10 294 31 1 42 1 3 2 2 78 40 8 42 22 26
    38 28 20 23 9 78 4 36 9 68 10 1 2 25 7 10 6 53 1 18 8 39 9 96 1 20 11 18 1 44 65 7 1 1 1 4 1
    15 1 11 6 59 5 10 6 4 1 8 2 2 2 22 1 7 1 2 1 5 1 10 2 2 2 3 2 1 6 1 5 7 2 7 3 5 139 92 1 5
    30 72 8 10 166 54 2 38 34 69 11 10 6 13 19 58 6 10 54 27 2 15 4 23 185 60 100 83 12 8 2 1 2
    8 1 2 1 30 1 2 2 12 9 10 70 8 2 46 2 11 27 72 8 83 13 73 263 9 1 45 1 14 10 29 3 32 2 22 1
    14 73 7 1 2 1 44 3 1 1 2 1 9 8 10 6 6 1 2 1 37 1 2 1 6 7 10 310 25 183 1 15 50 13 923 102
    111 1 5 11 196 2636 99 13 1071 1 9 4039 583 8633 569 7 31 1 10 4 81 1 10 6 30 2 6 10 70 10
    10 1 7 1 21 5 19 688 91 101 75 4 57 7 17 64 5 11 2 14 6136 8 1238 42 9 8935 4 1 7 1 2 1 291
    45 3 17 4 8 396 2308 107 5 13 3 9 7 10 2 8 4700 46 2 23 9 116 60 246 10 39 2 194 21 70 154
    20 12 87 9 25 135 85 1 71 1 2 2 1 2 2 2 4 1 12 1 1 1 7 1 65 1 4 2 8 1 7 1 28 1 4 1 5 1 1 3 7
    1 340 2 292 2 702 15 5 1 15 1104 31 225 7 1 17 2 7 1 2 1 5 213 45 3 14 2 10 4 2 320 31 17 58
    5 1 1248 7 1 4 1 2 1 15 1 197 2 16 41 76 4 10 4 2 785 68 76 61 194 4 1 27 1 2 1 1 2 1 1 10 1
    4 1 1 1 1 6 1 4 1 1 1 1 1 1 3 1 2 1 1 2 1 1 1 1 1 1 1 1 1 1 2 1 1 2 4 1 7 1 4 1 4 1 1 1 10 1
    17 5 3 1 5 1 17 52 2 270 44 4 100 12 15 2 15 1 15 1 37 10 174 56 29 13 44 4 9 7 2 14 6 154
    984 5 16 3 13 3 116 12 89 7 12 4 1 15 12 4 56 8 10 6 40 8 30 2 2 78 340 12 14 2 5 3 5 3 7 9
    29 3 11 5 6 10 10 6 8 8 7 9 147 1 55 37 10 1030 42720 32 4153 7 222 2 5762 14 7473 3103 542
    1506 4939 715958 1 30 96 128 240 65040 65534 2 65534
"""


def assigned_characters() -> Iterator[str]:
    """Yields the assigned characters in code point order, including private use and surrogates."""
    start, is_assigned = 0, False
    for length in map(int, _RUNS.split()):
        if is_assigned:
            yield from map(chr, range(start, start + length))
        start, is_assigned = start + length, not is_assigned
