r"""Streams documents out of text files.

In: `--input_file`, a comma list of files, globs and directories; plain text, .gz, .bz2, .xz or
.zst, in one of the formats of `data_tools.corpus.formats`:

* `sentences` (Google's): one sentence a line, a blank line between documents.
* `prose`: running text. A blank line ends a paragraph; two or more blank lines in a row (the gap
  between chapters), a form feed or the end of the file end a document.
* `jsonl`: a JSON object a line, the document in one of its fields.
* `wiki`: what WikiExtractor makes of a Wikipedia dump, `<doc>` tags or JSON.
* `gutenberg`: Project Gutenberg's books, a document each, without what is not the book.

Out: documents one after the other, each a list of sentences (str, stripped, none empty). Only one
document is in memory at a time, and an over-long one comes in parts.
"""

import glob
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from data_tools.corpus import formats, gutenberg
from data_tools.corpus.lines import Lines
from data_tools.corpus.odd_input import OddInput
from data_tools.corpus.sentences import check_language
from keras_bert.common.errors import InputError

INPUT_FORMATS = ("sentences", "prose", "jsonl", "wiki", "gutenberg")


@dataclass(frozen=True)
class Reading:
    """How a corpus is read.

    Attributes:
        input_format: one of INPUT_FORMATS.
        text_field: of jsonl: the field that holds the document.
        language: whose rules split sentences, a code of ISO 639-1; not used by sentences.
        max_bad_line_share: share of a file's lines that may be undecodable or malformed.
    """

    input_format: str = "sentences"
    text_field: str = "text"
    language: str = "en"
    max_bad_line_share: float = 0.1

    def __post_init__(self) -> None:
        """Checks every value.

        Raises:
            InputError: for the first one that is out of bounds.
        """
        if self.input_format not in INPUT_FORMATS:
            raise InputError(
                f"--input_format={self.input_format}: expected one of {', '.join(INPUT_FORMATS)}"
            )
        if not self.text_field:
            raise InputError("--text_field=: expected the name of a field")
        check_language(self.language)
        if not 0 <= self.max_bad_line_share <= 1:
            raise InputError(
                f"--max_bad_line_share={self.max_bad_line_share}: expected from 0 to 1"
            )


def find_input_files(patterns: str) -> list[str]:
    """Lists the files that `--input_file` names.

    Args:
        patterns: a comma list of files, globs (`**` crosses folders) and directories. A directory
            stands for every file below it, hidden ones (a name with a leading dot) left out.

    Returns:
        The paths, each once, in the order of the list and sorted within a glob or a directory.

    Raises:
        InputError: when an entry names no file, or something that is no plain file.
    """
    # A file may well have a comma in its name; then the whole value is that file.
    entries = [patterns] if os.path.isfile(patterns) else patterns.split(",")
    paths: dict[str, None] = {}
    for entry in filter(None, (entry.strip() for entry in entries)):
        found = _expand(entry)
        if not found:
            raise InputError(f"--input_file: no file at {entry!r}, expected a file, glob or folder")
        for path in itertools.filterfalse(os.path.isfile, found):
            # A pipe or a device may never end, and cannot be read again by the next build.
            what = "is no plain file" if os.path.exists(path) else "is a link to nothing"
            raise InputError(f"--input_file: {path} {what}, expected text files")
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


def open_local(path: str) -> BinaryIO:
    """Opens a file of this machine for reading.

    Args:
        path: the file.

    Returns:
        The stream of its bytes.

    Raises:
        OSError: it cannot be opened.
    """
    return open(path, "rb")


def read_documents(
    path: str,
    reading: Reading,
    odd: OddInput,
    open_file: Callable[[str], BinaryIO] = open_local,
) -> Iterator[list[str]]:
    """Reads one file's documents.

    Args:
        path: a text file, compressed if its name ends in .gz, .bz2, .xz or .zst.
        reading: how it is read.
        odd: what is odd in the file is added here when it has been read.
        open_file: gives the stream of a path's bytes, as they are stored.

    Yields:
        A document at a time: its sentences, at least one.

    Raises:
        InputError: for a file that cannot be read, a broken archive, UTF-16, or a file with too
            many lines that are undecodable or malformed; then some documents may have come already.
    """
    for text in read_texts(path, reading, odd, open_file):
        yield text.split("\n")


def read_texts(
    path: str,
    reading: Reading,
    odd: OddInput,
    open_file: Callable[[str], BinaryIO] = open_local,
) -> Iterator[str]:
    r"""Reads one file's documents without taking them apart; else as `read_documents`.

    Args:
        path: the file.
        reading: how it is read.
        odd: what is odd in the file is added here when it has been read.
        open_file: gives the stream of a path's bytes, as they are stored.

    Yields:
        A document at a time: its sentences with `\n` between them.

    Raises:
        InputError: as `read_documents`.
    """
    longest = formats.MAX_JSON_LINE_BYTES if reading.input_format in ("jsonl", "wiki") else None
    sizes = {"max_line_bytes": longest} if longest else {}
    lines = Lines(path, reading.max_bad_line_share, open_file, **sizes)
    if reading.input_format == "sentences":
        texts = formats.sentence_texts(lines)
    elif reading.input_format == "prose":
        texts = formats.prose_texts(lines, reading.language)
    elif reading.input_format == "jsonl":
        texts = formats.json_texts(lines, reading.text_field, reading.language)
    elif reading.input_format == "wiki":
        texts = formats.wiki_texts(lines, reading.language)
    else:
        texts = gutenberg.gutenberg_texts(lines, reading.language)
    is_empty = True
    for text in texts:
        is_empty = False
        yield text
    lines.check_bad_lines()
    if is_empty:
        lines.add_odd("empty_files")
    odd.merge(lines.odd)
