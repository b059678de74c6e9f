"""Reads and checks the vocabulary file vocab.txt.

In: a file with one UTF-8 piece a line; a piece's id is its line number, counted from 0.
Out: `list[str]` of V pieces. A file that cannot be a BERT vocabulary is refused in one line.
"""

import itertools
import math
import os

from absl import logging

from keras_bert.common.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def load_vocab(path: str | os.PathLike) -> list[str]:
    r"""Reads a vocabulary file, one piece a line, and checks that BERT can use it.

    Lines end at "\n" alone: real vocabularies hold U+2028 and U+0085 as pieces, which
    `str.splitlines` would split. A "\r" before the "\n" and a missing last "\n" are both fine.

    Args:
        path: the file.

    Returns:
        The V pieces; a piece's index is its id.

    Raises:
        InputError: the file is missing, empty or not UTF-8, has an empty line or a repeated piece,
            or lacks one of [PAD], [UNK], [CLS], [SEP], [MASK].
    """
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot read vocabulary {path}: {error.strerror}") from None
    if lines[-1] == b"":
        lines.pop()
    vocab = []
    for number, line in enumerate(lines, start=1):
        try:
            vocab.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError:
            raise InputError(
                f"vocabulary {path}, line {number}: expected UTF-8, got the bytes {line[:40]!r}"
            ) from None
    check_vocab(vocab, where=f"vocabulary {path}")
    return vocab


def fit_vocab(vocab: list[str], rows: int, path: str | os.PathLike) -> list[str]:
    """Names the rows of an embedding table that a vocabulary has no piece for.

    A table may be padded to a multiple of 8, 16, 32, 64 or 128, which is faster on some devices. No
    text is cut into a piece that is added here.

    Args:
        vocab: the pieces, in the order of their ids.
        rows: vocab_size in the config.
        path: where the pieces were read from, for messages.

    Returns:
        As many pieces as rows; those that were added are [unusedN], with N that were free.

    Raises:
        InputError: more pieces than rows, or fewer by more than such a padding.
    """
    missing, multiple = rows - len(vocab), math.gcd(rows, 128)
    if missing and not (0 < missing < multiple and multiple >= 8):
        raise InputError(
            f"{os.fspath(path)}: has {len(vocab)} pieces, but vocab_size in the config is {rows}; "
            "expected the same number, added tokens among them, or fewer where vocab_size is padded"
            " to a multiple of 8 to 128"
        )
    known = {*vocab}
    free = (name for name in map("[unused{}]".format, itertools.count()) if name not in known)
    added = [*itertools.islice(free, missing)]
    if added:
        logging.warning(
            "%s: has %d pieces for %d rows; the rest are named %s to %s",
            path,
            len(vocab),
            rows,
            added[0],
            added[-1],
        )
    return [*vocab, *added]


def check_vocab(vocab: list[str], where: str = "vocabulary") -> None:
    """Checks that a list of pieces can be a BERT vocabulary.

    Args:
        vocab: the V pieces, in the order of their ids.
        where: what the error message starts with, such as the file's name.

    Raises:
        InputError: an empty or repeated piece, or a special token is absent.
    """
    if not vocab:
        raise InputError(f"{where}: expected one word piece a line, got an empty file")
    lines: dict[str, int] = {}
    for number, piece in enumerate(vocab, start=1):
        if not piece:
            raise InputError(f"{where}, line {number}: expected a word piece, got an empty line")
        if piece in lines:
            raise InputError(
                f"{where}: the piece {piece!r} is on line {lines[piece]} and again on line "
                f"{number}; every piece must be there once"
            )
        lines[piece] = number
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        lowered = [token.lower() for token in missing if token.lower() in lines]
        hint = f"; it has {' '.join(lowered)} in lower case, which BERT does not know" * bool(
            lowered
        )
        raise InputError(f"{where}: expected the special token(s) {' '.join(missing)}{hint}")
