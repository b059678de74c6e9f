"""Reads vocabularies and files of tokens."""

import codecs
import itertools
import os
import re
from collections.abc import Iterator, Sequence

from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import check_no_nul, read_lines

# --- files of tokens ---


MAX_TOKEN_BYTES = 256  # limit of tensorflow-text


def read_tokens(path: str | os.PathLike, flag: str) -> list[str]:
    """Reads the tokens of a file, one from each line; error messages start with `flag`.

    Raises:
        InputError: the file cannot be read, is empty, or is not UTF-8; or a token is empty, too
            long or repeated, or contains white space.
    """
    where = f"--{flag}={os.fspath(path)}"
    lines: dict[str, int] = {}
    for number, token in read_lines(path):
        check_no_nul(path, number, token)
        problem = _problem(token)
        if problem:
            raise InputError(f"{where}, line {number}: {problem}; expected one token per line")
        if token in lines:
            raise InputError(
                f"{where}: the token {token!r} is on lines {lines[token]} and {number}; expected "
                "each token once"
            )
        lines[token] = number
    if not lines:
        raise InputError(f"{where}: is empty; expected one token per line")
    return list(lines)


def _problem(token: str) -> str | None:
    if not token:
        return "an empty line"
    if any(character.isspace() for character in token):
        return f"{token!r} contains white space"
    size = len(token.encode())
    if size > MAX_TOKEN_BYTES or len(token) > MAX_CHARS_PER_WORD:
        return (
            f"a token of {len(token)} characters in {size} bytes, over {MAX_CHARS_PER_WORD} "
            f"characters or {MAX_TOKEN_BYTES} bytes"
        )
    return None


# --- vocabulary ---


_UNUSED = re.compile(r"\[unused\d+\]")
MAX_CHARS_PER_WORD = 200  # In Google's code, a longer word becomes [UNK].
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def load_vocab(path: str | os.PathLike) -> list[str]:
    r"""Reads the V tokens of a vocabulary file in the order of their ids, one from each line.

    Only "\n" and "\r\n" end a line, because real vocabularies contain U+2028 and U+0085 as tokens.
    As in Google's code, white space around a token is removed; a token of white space stays. For
    empty lines and repeated tokens, see `named_tokens`.

    Raises:
        InputError: the file is missing, empty or not UTF-8, or lacks one of [PAD], [UNK], [CLS],
            [SEP], [MASK].
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise InputError(f"cannot read vocabulary {path}: {error.strerror}") from None
    where = f"vocabulary {os.fspath(path)}"
    if content.startswith(codecs.BOM_UTF8):
        logging.warning("%s: starts with a byte order mark, which is ignored", where)
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        line = content.split(b"\n")[number - 1]
        raise InputError(
            f"{where}, line {number}: expected UTF-8, got the bytes {line[:40]!r}"
        ) from None
    tokens = [stripped(line.removesuffix("\r")) for line in lines]
    vocab = named_tokens(tokens, where)
    check_vocab(vocab, where)
    return vocab


def named_tokens(tokens: Sequence[str], where: str) -> list[str]:
    """Names the ids that no text can have [unusedN], with numbers that are not in the vocabulary.

    They are those of empty tokens, of which those at the end are omitted, and of repeated tokens
    except the last one, as in transformers. If there are any, a warning is logged, which starts
    with `where`.
    """
    tokens = [*tokens]
    while tokens and not tokens[-1]:
        tokens.pop()
    last = {token: index for index, token in enumerate(tokens) if token}
    if len(last) == len(tokens):
        return tokens
    names = _unused_names(tokens)
    named = [
        token if last.get(token) == index else next(names) for index, token in enumerate(tokens)
    ]
    first = next(index for index, token in enumerate(tokens) if named[index] != token)
    problem = f"repeats the token {tokens[first]!r}" if tokens[first] else "is empty"
    logging.warning(
        "%s: no text has the ids of %d lines, which are empty or repeat a token: the first, line "
        "%d, %s. They are named [unusedN]",
        where,
        len(tokens) - len(last),
        first + 1,
        problem,
    )
    return named


def fit_vocab(vocab: list[str], rows: int, path: str | os.PathLike) -> list[str]:
    """Extends a vocabulary to `rows` tokens, the number of rows of an embedding table.

    A table may have more rows than the vocabulary has tokens, for example because it is padded to a
    multiple of 8, which is faster on some devices. The added tokens are named [unusedN], with
    numbers that the vocabulary does not contain, and never occur in tokenized text. Messages start
    with `path`, the vocabulary file.

    Raises:
        InputError: there are more tokens than rows.
    """
    missing = rows - len(vocab)
    if missing < 0:
        raise InputError(
            f"{os.fspath(path)}: has {len(vocab)} tokens, but vocab_size in the config is {rows}; "
            "expected at most as many (including added tokens)"
        )
    added = [*itertools.islice(_unused_names(vocab), missing)]
    if added:
        logging.warning(
            "%s: has %d tokens for %d embedding rows; the other rows are named %s to %s. If the "
            "model is not known to have unused rows, check that the file is its vocabulary",
            path,
            len(vocab),
            rows,
            added[0],
            added[-1],
        )
    return [*vocab, *added]


def stripped(token: str) -> str:
    """Removes white space around a token, unless only white space would follow the prefix "##"."""
    word = token.strip()
    return token if word in ("", "##") else word


def _unused_names(vocab: Sequence[str]) -> Iterator[str]:
    tokens = {*vocab}
    return (name for name in map("[unused{}]".format, itertools.count()) if name not in tokens)


def unused_ids(vocab: Sequence[str]) -> list[int]:
    """Returns the ids of the [unusedN] tokens in ascending order."""
    return [index for index, token in enumerate(vocab) if _UNUSED.fullmatch(token)]


def first_difference(
    reference: Sequence[str], tokens: Sequence[str], may_extend: bool = False
) -> int | None:
    """Returns the first id at which two vocabularies of equal size differ; None if they are equal.

    With `may_extend`, `reference` may have other tokens in place of the [unusedN] of `tokens`.
    """
    free = {*unused_ids(tokens)} if may_extend else set()
    pairs = enumerate(zip(reference, tokens, strict=True))
    return next((id_ for id_, (a, b) in pairs if a != b and id_ not in free), None)


def check_same_vocab(
    expected: tuple[Sequence[str], os.PathLike],
    other: tuple[Sequence[str], os.PathLike],
    may_extend: bool = False,
    users: str = "records and model",
) -> None:
    """Checks that two vocabularies, (tokens in the order of their ids, path) each, are equal.

    With `may_extend`, `expected` may have other tokens in place of the [unusedN] of `other`.
    `users`, which need the same vocabulary, are named in the error message.

    Raises:
        InputError: the vocabularies differ. The message has the first line that differs.
    """
    (reference, path), (tokens, other_path) = expected, other
    if len(reference) != len(tokens):
        difference, hint = f"has {len(tokens)} tokens, and that of {path} has {len(reference)}", ""
        if may_extend and len(reference) > len(tokens):
            hint = f". To add tokens to the model: convert {other_path} NEW --vocab_file={path}"
    else:
        index = first_difference(reference, tokens, may_extend)
        if index is None:
            return
        difference = f"differs from that of {path}: line {index + 1} is {tokens[index]!r}, not "
        difference += repr(reference[index])
        hint = ", except for [unusedN] tokens" if may_extend else ""
    raise InputError(
        f"{other_path}: its vocabulary {difference}; expected the same vocabulary for {users}{hint}"
    )


def check_vocab(vocab: list[str], where: str = "vocabulary") -> None:
    """Checks that a list of tokens can be a BERT vocabulary; error messages start with `where`.

    Raises:
        InputError: a token is empty or repeated, or a special token is missing.
    """
    if not vocab:
        raise InputError(f"{where}: expected one token per line, got an empty file")
    lines: dict[str, int] = {}
    for number, token in enumerate(vocab, start=1):
        if not token:
            raise InputError(f"{where}, line {number}: expected a token, got an empty line")
        if token in lines:
            raise InputError(
                f"{where}: the token {token!r} is on lines {lines[token]} and {number}; "
                "expected each token once"
            )
        lines[token] = number
    missing = [token for token in SPECIAL_TOKENS if token not in lines]
    if missing:
        lowered = [token.lower() for token in missing if token.lower() in lines]
        hint = f", got {' '.join(lowered)} in lower case" * bool(lowered)
        raise InputError(f"{where}: expected the special token(s) {' '.join(missing)}{hint}")
