"""Makes tests/golden/tokenizer.npz: the tokens that Google's own tokenizer produces.

The input is 40,000 hard strings and all real text in ../shared/data.

    .peers/bin/python tests/golden/make_tokenizer_golden.py

It runs `bert-tensorflow` 1.0.4 with tensorflow.compat.v1 in the place of tensorflow. The strings
are not stored: `hard_strings()` makes them again, byte for byte, and the test imports it. Neither
are the ids: a hash a string (hard strings, 2 bytes) or a hash for 20 lines (real text, 4 bytes) is
enough to find any difference. Array names are "SETTING/hard" and "SETTING/FILE".
"""

import hashlib
import random
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("tokenizer.npz")
LINES_A_HASH = 20

# Setting: folder of the vocabulary (None: `every_character_vocab`), do_lower_case.
SETTINGS = {
    "uncased": ("bert-base-uncased", True),
    "cased": ("bert-base-cased", False),
    "chinese": ("bert-base-chinese", True),
    "multilingual": ("bert-base-multilingual-cased", False),
    "multilingual-lower": ("bert-base-multilingual-cased", True),
    "characters-lower": (None, True),
    "characters": (None, False),
}


def every_character_vocab() -> list[str]:
    """Every character as a token, so that no difference hides behind an [UNK]."""
    code_points = [*range(0x21, 0xD800), *range(0xE000, 0x1FB00), *range(0xE0100, 0xE01F0)]
    chars = [chr(c) for c in code_points if c not in (0x85, 0xA0)]
    pairs = [a + b for a in "abcdeσςαι" for b in "abcdeσςαι"]
    entries = [*chars, *pairs]
    return [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *entries,
        *("##" + entry for entry in entries),
    ]


def hard_strings() -> list[bytes]:
    """Makes the adversarial strings: the same ones on any machine and under any Unicode version."""
    rng = random.Random(20181031)
    strings = [b"", b" ", b"\n", b"\t \r\n", "\u3000\u00a0\u2028".encode(), b"\0", b"\xff"]
    strings += [s.encode() for s in _every_code_point(rng)]
    for maker, count in (
        (_mixed_blocks, 6000),
        (_marks, 5000),
        (_sigmas, 3000),
        (_spaces_and_controls, 2000),
        (_cjk, 2000),
        (_emoji, 2000),
        (_words, 2500),
        (_long_words, 600),
        (_special_tokens, 1000),
    ):
        strings += [maker(rng).encode("utf-8", "surrogatepass") for _ in range(count)]
    strings += [_broken_utf8(rng) for _ in range(2000)]
    return strings


def real_texts(data: Path) -> Iterator[tuple[str, list[bytes]]]:
    """Yields every text file of the shared data as its name and its lines.

    A line over 4,000 bytes is split there, even within a character, to test broken UTF-8.
    """
    for pattern in ("corpus/**/*.txt", "glue/*/*.tsv", "ner/*/*.*", "squad/*.json"):
        for path in sorted(data.glob(pattern)):
            lines = path.read_bytes().split(b"\n")
            parts = [line[i : i + 4000] for line in lines for i in range(0, len(line) or 1, 4000)]
            yield str(path.relative_to(data)), parts


def hash_hard(ids: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """One 16-bit hash for the ids of each string; string i has ids[splits[i] : splits[i + 1]]."""
    return np.array([_hash(part, 2) for part in np.split(ids, splits[1:-1])], np.uint16)


def hash_lines(ids: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """One 32-bit hash for the ids of 20 lines, with a -1 after each line."""
    with_ends = np.insert(ids, splits[1:], -1)
    ends = splits[1:] + np.arange(1, len(splits))
    chunks = np.split(with_ends, ends[LINES_A_HASH - 1 : -1 : LINES_A_HASH])
    return np.array([_hash(chunk, 4) for chunk in chunks], np.uint32)


def _hash(ids: np.ndarray, size: int) -> int:
    digest = hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=size).digest()
    return int.from_bytes(digest, "little")


# The makers of one string each. Code points are given by range, never by Unicode property, so that
# a newer Python makes the same strings.

_BLOCKS = [
    *((start, start + 0x7F) for start in range(0, 0xD800, 0x80)),
    *((start, start + 0x7F) for start in range(0xE000, 0x20000, 0x80)),
    *((0x20000 + i, 0x20000 + i + 0xFF) for i in range(0, 0x12000, 0x1000)),
    *((0xE0000, 0xE01FF), (0xF0000, 0xF00FF), (0x10FF00, 0x10FFFF)),
]
_MARKS = [
    *range(0x300, 0x370), *range(0x483, 0x48A), *range(0x591, 0x5C8), *range(0x610, 0x61B),
    *range(0x64B, 0x660), *range(0x900, 0x904), *range(0x93A, 0x950), *range(0xE31, 0xE4F),
    *range(0x1AB0, 0x1AD0), *range(0x1DC0, 0x1E00), *range(0x20D0, 0x20F1), *range(0x302A, 0x3030),
    *range(0x3099, 0x309D), *range(0xFE00, 0xFE10), *range(0xFE20, 0xFE30),
    *range(0x1D165, 0x1D173), *range(0xE0100, 0xE0110), 0x200B, 0x200C, 0x200D, 0xAD, 0x1B44,
]  # fmt: skip


def _every_code_point(rng: random.Random) -> Iterator[str]:
    last = [*range(0, 0xD800), *range(0xE000, 0x32400), *range(0xE0000, 0xE0200)]
    last += [*range(0xFFFF0, 0x100010), *range(0x10FFF0, 0x110000)]
    rng.shuffle(last)
    for i in range(0, len(last), 16):
        before = rng.choice(("", "a", "B", "é", "1", "!", "漢", "ά", " "))
        after = rng.choice(("", "z", "É", " ", "\u0301", "\u0323\u0301", "Σ", "a b"))
        yield "".join(before + chr(c) + after for c in last[i : i + 16])


def _char(rng: random.Random) -> str:
    return chr(rng.randint(*rng.choice(_BLOCKS)))


def _mixed_blocks(rng: random.Random) -> str:
    blocks = [rng.choice(_BLOCKS) for _ in range(rng.randint(1, 4))] + [(0x20, 0x7E)]
    return "".join(chr(rng.randint(*rng.choice(blocks))) for _ in range(rng.randint(1, 60)))


def _marks(rng: random.Random) -> str:
    bases = "aeiouAEIOUñÅΩωĭ̆가한ㄱがカकิ9!漢ǖǙ≠≮≯ﬁ" + _char(rng) + _char(rng)
    out = ""
    for _ in range(rng.randint(1, 12)):
        out += rng.choice(bases)
        out += "".join(chr(rng.choice(_MARKS)) for _ in range(rng.choice((0, 0, 1, 1, 2, 3, 8))))
        out += rng.choice(("", "", " "))
    return out


def _sigmas(rng: random.Random) -> str:
    alphabet = "ΣΣΣΣσςΑαaA'’.:·-_ʰªⅣⓐ\u0345\u0301\u00ad\u200d\u0001\ufffd 漢1!ǅ中\u2028´`^¨\u05d0"
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 14)))


def _spaces_and_controls(rng: random.Random) -> str:
    odd = [*range(0, 0x21), *range(0x7F, 0xA2), 0xAD, 0x1680, 0x180E, *range(0x2000, 0x2010)]
    odd += [*range(0x2028, 0x2030), *range(0x205F, 0x2070), 0x3000, 0xFEFF, *range(0xFFF0, 0xFFFF)]
    odd += [0x110BD, 0x1BCA0, 0xE0001, 0xE0020, *map(ord, "aB.é漢" * 15)]
    return "".join(chr(rng.choice(odd)) for _ in range(rng.randint(1, 40)))


_CJK_BLOCKS = [(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF)]
_CJK_BLOCKS += [(0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0x2F800, 0x2FA1F)]
_NEAR_CJK = [(0x3040, 0x30FF), (0xAC00, 0xD7A3), (0x3000, 0x303F), (0xFF00, 0xFFEF)]
_NEAR_CJK += [(0x2E80, 0x2FDF), (0x1100, 0x11FF), (0x2CEB0, 0x2EBE0), (0x30000, 0x3134A)]


def _cjk(rng: random.Random) -> str:
    edges = [edge + off for block in _CJK_BLOCKS for edge in block for off in (-1, 0, 1)]
    out = ""
    for _ in range(rng.randint(1, 30)):
        choice = rng.random()
        block = rng.choice(_CJK_BLOCKS + _NEAR_CJK)
        out += chr(rng.choice(edges)) if choice < 0.3 else chr(rng.randint(*block))
        out += "a" if choice > 0.8 else "\u0301" if choice < 0.05 else ""
    return out


_EMOJI = """👩 👨 👧 \u200d \ufe0f 🏽 ❤ 🏳 🌈 🇩 🇪 1\ufe0f\u20e3 ☕ 😀 ™ © a ! 🫠 🩷 ♂
🧑🏿\u200d🚀 🏴\U000e0067\U000e0062\U000e007f"""
_WORDS = """un afford able ING ed naïve Straße İstanbul don't e-mail U.S. 3.14 $5 x ǄUR ÅNGSTRÖM
Δοκιμή ΟΔΥΣΣΕΥΣ Привет ЙОГ שָׁלוֹם مُحَمَّد हिन्दी ภาษา 日本 ニュース 한국어 ##ing [unused5] <unk> @-@
ﬁn ﷺ ½"""
_LONG = "a ab é e\u0301 한 漢 ! क a\u200d 😀 İ Σ a. ﬃ"
_LENGTHS = (66, 67, 68, 99, 100, 101, 199, 200, 201, 202, 255, 256, 257, 300, 801, 2000)
_SPECIAL = """[MASK] [SEP] [CLS] [PAD] [UNK] [mask] [MASK MASK] [[MASK]] [MA\0SK] [MA\u0301SK] a é
\x01 \ufdd0 \ufdd4 \ufdef"""


def _emoji(rng: random.Random) -> str:
    return "".join(rng.choice([" ", *_EMOJI.split()]) for _ in range(rng.randint(1, 20)))


def _words(rng: random.Random) -> str:
    joints, words = (" ", "", "", "-"), _WORDS.split()
    return "".join(rng.choice(words) + rng.choice(joints) for _ in range(rng.randint(1, 15)))


def _long_words(rng: random.Random) -> str:
    length = rng.choice(_LENGTHS) + rng.randint(-1, 1)
    tail = rng.choice(("", "x", " tail", "!", "\u0301"))
    return rng.choice(("", "head ", "(")) + (rng.choice(_LONG.split()) * length)[:length] + tail


def _special_tokens(rng: random.Random) -> str:
    return "".join(rng.choice([" ", *_SPECIAL.split()]) for _ in range(rng.randint(1, 8)))


def _broken_utf8(rng: random.Random) -> bytes:
    text = bytearray(_mixed_blocks(rng).encode("utf-8", "surrogatepass"))
    wrong = (b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe4\xbd", b"\xf0\x9f\x98")
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.random(), rng.randint(0, len(text))
        if kind < 0.4:
            text[at:at] = bytes([rng.randint(0x80, 0xFF)])
        elif kind < 0.7:
            del text[at : at + 1]
        else:
            text[at:at] = rng.choice(wrong)
    return bytes(text)


def main() -> None:
    import tensorflow.compat.v1 as tf_v1

    sys.modules["tensorflow"] = tf_v1
    from absl import flags
    from bert import tokenization

    sys.path.insert(0, str(ROOT))
    from keras_bert.text.vocabulary import load_vocab

    flags.FLAGS(sys.argv[:1])
    data = ROOT.parent / "shared" / "data"
    hard, real = hard_strings(), list(real_texts(data))
    arrays = {"unidata_version": np.array(unicodedata.unidata_version)}
    for setting, (folder, do_lower_case) in SETTINGS.items():
        vocab = every_character_vocab()
        if folder is not None:
            vocab = load_vocab(data / "vocab" / folder / "vocab.txt")
        ids_of = {token: i for i, token in enumerate(vocab)}
        basic = tokenization.BasicTokenizer(do_lower_case)
        wordpiece = tokenization.WordpieceTokenizer(ids_of)

        def tokenize(texts: list[bytes], basic=basic, wordpiece=wordpiece, ids_of=ids_of):
            ids, splits = [], [0]
            for text in texts:
                for word in basic.tokenize(text):
                    ids += [ids_of[token] for token in wordpiece.tokenize(word)]
                splits.append(len(ids))
            return np.array(ids, np.int32), np.array(splits)

        arrays[f"{setting}/hard"] = hash_hard(*tokenize(hard))
        if folder is not None:
            for name, lines in real:
                arrays[f"{setting}/{name}"] = hash_lines(*tokenize(lines))
        print(setting, len(hard), "hard strings", sum(len(lines) for _, lines in real), "lines")
    np.savez_compressed(GOLDEN, **arrays)
    print(GOLDEN, GOLDEN.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
