"""Reads files that list tokens, one per line, and compares them with a vocabulary."""

import os
from collections.abc import Collection, Sequence

from keras_bert.common.errors import InputError
from keras_bert.common.text_lines import check_no_nul, read_lines
from keras_bert.text.vocabulary import MAX_CHARS_PER_WORD

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


def check_not_in_vocab(
    tokens: Sequence[str], vocab: Collection[str], where: str, name: str = "in the vocabulary"
) -> None:
    """Raises an InputError if a token is in the vocabulary, which the message calls `name`."""
    known = set(vocab)
    found = [token for token in tokens if token in known]
    if found:
        raise InputError(f"{where}: {_examples(found)} already {name}; expected only new tokens")


def check_in_vocab(tokens: Sequence[str], vocab: Collection[str], where: str) -> None:
    """Raises an InputError if a token is not in the vocabulary; `where` starts the message."""
    known = set(vocab)
    missing = [token for token in tokens if token not in known]
    if missing:
        raise InputError(
            f"{where}: {_examples(missing)} not in the vocabulary; expected only its tokens"
        )


def _examples(tokens: Sequence[str]) -> str:
    """Returns the start of a sentence about tokens, of which it names up to three."""
    names = ", ".join(map(repr, tokens[:3]))
    if len(tokens) > 3:
        return f"{names} and {len(tokens) - 3} other tokens are"
    return f"{names} {'is' if len(tokens) == 1 else 'are'}"
