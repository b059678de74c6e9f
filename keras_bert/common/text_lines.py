r"""Reads text files by line, and rejects lines that are not UTF-8.

Only "\n" ends a line (any "\r" before it is removed), because texts may contain U+2028 and similar
characters. A byte order mark is skipped.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_bert.common.errors import InputError


def check_no_nul(path: str | Path, number: int, text: str) -> None:
    """Rejects a line with a NUL character, which indicates a binary file or UTF-16."""
    if "\0" in text:
        raise InputError(f"{path}, line {number}: has a NUL character; expected text in UTF-8")


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yields (number, text) for each line, with numbers from 1 and texts without line ends.

    The path "-" is standard input.

    Raises:
        InputError: the file cannot be read, or a line is not UTF-8.
    """
    try:
        with sys.stdin.buffer if path == "-" else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield number, text.removesuffix("\n").rstrip("\r")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        bad = error.object[error.start : error.start + 10]
        raise InputError(f"{path}, line {number}: expected UTF-8, got the bytes {bad!r}") from None


def parse_json(content: str, where: str) -> Any:
    """Parses JSON; `where` starts the message of the InputError for text that is not JSON."""
    try:
        return json.loads(content)
    except RecursionError:
        raise InputError(f"{where}: is nested too deeply; expected a JSON object") from None
    except ValueError as error:
        raise InputError(f"{where}: is not JSON: {error}") from None
