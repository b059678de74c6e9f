r"""Streams documents out of text files.

In: `--input_file`, a comma list of files, globs and directories; plain text, .gz, .bz2 or .xz.
Out: documents one after the other, each a list of sentences (str, stripped, none empty).

Two formats:

* `sentences` (Google's): one sentence a line, a blank line between documents.
* `prose`: running text. A blank line ends a paragraph; two or more blank lines in a row (the gap
  between chapters), a form feed or the end of the file end a document. A paragraph's lines are
  joined and split into sentences by `data_tools.sentences`.

Lines end in `\n` or `\r\n` and nothing else, so that a stray U+2028 or vertical tab inside a
sentence doesn't cut it. A byte order mark at the start of a file is dropped. Only one document is
in memory at a time.
"""

import bz2
import glob
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from data_tools.sentences import split_sentences
from keras_bert.errors import InputError

INPUT_FORMATS = ("sentences", "prose")

_OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_BROKEN_ARCHIVE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def find_input_files(patterns: str) -> list[str]:
    """Lists the files that `--input_file` names.

    Args:
        patterns: a comma list of files, globs (`**` crosses folders) and directories. A directory
            stands for every file below it, hidden ones (a name with a leading dot) left out.

    Returns:
        The paths, each once, in the order of the list and sorted within a glob or a directory.

    Raises:
        InputError: when an entry names no file.
    """
    # A file may well have a comma in its name; then the whole value is that file.
    entries = [patterns] if os.path.isfile(patterns) else patterns.split(",")
    paths: dict[str, None] = {}
    for entry in filter(None, (entry.strip() for entry in entries)):
        found = _expand(entry)
        if not found:
            raise InputError(f"--input_file: no file at {entry!r}, expected a file, glob or folder")
        paths.update(dict.fromkeys(found))
    if not paths:
        raise InputError(f"--input_file={patterns!r} names no file")
    return list(paths)


def _expand(entry: str) -> list[str]:
    if os.path.isfile(entry):  # before the glob: a name may hold "["
        return [entry]
    matches = [entry] if os.path.isdir(entry) else sorted(glob.glob(entry, recursive=True))
    paths = []
    for match in matches:
        if not os.path.isdir(match):
            paths.append(match)
        elif match == entry:
            for folder, subfolders, names in os.walk(match):
                subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
                visible = sorted(name for name in names if not name.startswith("."))
                paths += [os.path.join(folder, name) for name in visible]
    return paths


def read_documents(path: str, input_format: str = "sentences") -> Iterator[list[str]]:
    """Reads one file's documents.

    Args:
        path: a text file, compressed if its name ends in .gz, .bz2 or .xz.
        input_format: `sentences` or `prose` (see the module's docstring).

    Yields:
        A document at a time: its sentences, at least one.

    Raises:
        InputError: for a file that cannot be read, a broken archive, or bytes that are not UTF-8
            (with the file and the line).
    """
    if input_format not in INPUT_FORMATS:
        raise InputError(
            f"--input_format={input_format!r}: expected one of {', '.join(INPUT_FORMATS)}"
        )
    lines = _read_lines(path)
    return _sentence_documents(lines) if input_format == "sentences" else _prose_documents(lines)


def _read_lines(path: str) -> Iterator[str]:
    """Yields a file's lines, decoded, line ends included."""
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                yield line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} line {number}: not UTF-8 (byte 0x{error.object[error.start]:02x} at offset "
            f"{error.start} of the line)"
        ) from None
    except _BROKEN_ARCHIVE as error:
        raise InputError(f"{path}: broken archive after line {number} ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def is_archive(path: str) -> bool:
    """Tells by its name whether a file is compressed.

    Args:
        path: the file.

    Returns:
        True for .gz, .bz2 and .xz.
    """
    return os.path.splitext(path)[1].lower() in _OPENERS


def _open(path: str) -> BinaryIO:
    return _OPENERS.get(os.path.splitext(path)[1].lower(), open)(path, "rb")


def _sentence_documents(lines: Iterator[str]) -> Iterator[list[str]]:
    document = []
    for line in lines:
        sentence = line.strip()
        if sentence:
            document.append(sentence)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _prose_documents(lines: Iterator[str]) -> Iterator[list[str]]:
    document: list[str] = []
    paragraph: list[str] = []
    blank_lines = 0
    for line in lines:
        for part_number, part in enumerate(line.split("\f")):
            opens_page = part_number > 0
            text = part.strip()
            blank_lines = 0 if text else blank_lines + 1
            if paragraph and (opens_page or not text):
                document += split_sentences(" ".join(paragraph))
                paragraph = []
            if document and (opens_page or blank_lines >= 2):
                yield document
                document = []
            if text:
                paragraph.append(text)
    document += split_sentences(" ".join(paragraph))
    if document:
        yield document
