r"""Reads and writes CoNLL column files, which have a word and its tag on each line.

    # id 7                    a comment, if `comment_prefix` is #
    EU      NNP  B-ORG        columns separated by tabs or white space: one for the words and one
    rejects VBZ  O            for the tags
                              an empty line, or one of white space, ends the sentence
    -DOCSTART- -X- O          a document starts here

A byte-order mark and "\r" at line ends are ignored. A file with one column has words without tags.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keras_bert.common.errors import InputError
from keras_bert.common.files import write_bytes
from keras_bert.common.text_lines import check_no_nul, read_lines

DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True)
class Sentence:
    """A sentence of W words.

    Attributes:
        words: the W words.
        tags: the W tags in the scheme of the file; empty if the file has no tags.
        line: the line number of the first word, counted from 1; or the number of the object or row
            with the whole sentence, if `unit` is not empty.
        document: the index of the sentence's document in the file; 0 if no line starts a document.
        unit: the unit of `line` in error messages, such as "row", for a sentence of one object.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int
    document: int = 0
    unit: str = ""

    def where(self, place: int) -> str:
        """Describes where the word with the index `place` is, such as "line 3"."""
        if self.unit:
            return f"{self.unit} {self.line}, word {place + 1}"
        return f"line {self.line + place}"


def read_conll(
    path: str | os.PathLike,
    token_column: int = 0,
    tag_column: int = -1,
    comment_prefix: str = "",
) -> list[Sentence]:
    """Reads the sentences of a column file.

    Columns are counted from 0, or from the end if negative. A line that starts with
    `comment_prefix` is skipped before the first word of a sentence; within a sentence it is a word,
    such as #1.

    Raises:
        InputError: the file cannot be read or has no sentence; or a line has a NUL character, a
            different number of columns than the first one, too few columns, or an empty word or
            tag; or the words are numbered, and `token_column` is the column of their numbers.
    """
    sentences: list[Sentence] = []
    words, tags, first_line, document, started = [], [], 0, 0, False
    width, hint = None, ""  # width: (number of columns, line number) of the first word.

    def end_sentence() -> None:
        if words:
            sentences.append(Sentence(tuple(words), tuple(tags), first_line, document))
            words.clear()
            tags.clear()

    for number, line in read_lines(Path(path)):
        check_no_nul(path, number, line)
        if not line.strip(" \t"):
            end_sentence()
            continue
        if comment_prefix and not words and line.startswith(comment_prefix):
            continue
        # `split()` would also split at a no-break space, which may be a word.
        columns = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if columns[0] == DOCUMENT_START:
            end_sentence()
            document += started
            started = True
            continue
        started = True
        if width is None:
            width = (len(columns), number)
            hint = "; for comments, set --comment_prefix='#'" * line.startswith("#")
        where = f"{path}, line {number}"
        if len(columns) != width[0]:
            raise InputError(
                f"{where}: expected {width[0]} columns, as in line {width[1]}; got "
                f"{len(columns)}: {line[:80]!r}{hint}"
            )
        if not words:
            first_line = number
        words.append(_column(columns, token_column, "--token_column", where, hint))
        if len(columns) > 1:
            tags.append(_column(columns, tag_column, "--tag_column", where, hint))
    end_sentence()
    if not sentences:
        raise InputError(f"{path}: contains no sentences; expected a word and its tag on each line")
    if width[0] > 2 and _are_numbered(sentences):
        raise InputError(
            f"{path}: column {token_column} has the number of each word; expected words, probably "
            f"--token_column={token_column + 1}"
        )
    return sentences


def write_conll(path: str | os.PathLike, sentences: Sequence[Sequence[Sequence[str]]]) -> None:
    """Writes sentences in the format of conlleval.

    Columns are separated by spaces, and an empty line follows each sentence. A sentence is given as
    a sequence of columns, such as words, gold tags and predicted tags, each with W strings. White
    space within a word or a tag becomes "_".
    """
    lines = []
    for columns in sentences:
        for word, *tags in zip(*columns, strict=True):
            lines.append(" ".join("_".join(value.split()) or "_" for value in (word, *tags)))
        lines.append("")
    write_bytes(path, "".join(f"{line}\n" for line in lines).encode())


def _are_numbered(sentences: Sequence[Sentence]) -> bool:
    """Returns whether the words of all sentences are the numbers from 0 or from 1."""
    first = sentences[0].words[0]
    longest = max(len(sentence.words) for sentence in sentences)
    if longest == 1 or first not in ("0", "1"):
        return False
    numbers = tuple(map(str, range(int(first), int(first) + longest)))
    return all(sentence.words == numbers[: len(sentence.words)] for sentence in sentences)


def _column(columns: Sequence[str], index: int, flag: str, where: str, hint: str) -> str:
    if not -len(columns) <= index < len(columns):
        raise InputError(f"{where}: {flag}={index}, but the line has {len(columns)} columns{hint}")
    value = columns[index].strip(" ")
    if not value:
        raise InputError(f"{where}: column {index} is empty; expected a word and its tag")
    return value
