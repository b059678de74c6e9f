"""Reads the documents of a corpus, each as a list of non-empty sentences.

Files are in one of these formats. Text files may be compressed: .gz, .bz2, .xz or .zst.

* `sentences` (format of Google's BERT): one sentence per line, a blank line between documents.
* `prose`: running text. A blank line ends a paragraph. Two or more blank lines (the gap between
  chapters), a form feed or the end of the file end a document.
* `jsonl`: one JSON object per line, with the document in one of its fields.
* `wiki`: the output of WikiExtractor for a Wikipedia dump, as `<doc>` tags or as JSON.
* `gutenberg`: Project Gutenberg's books, one document per book, without headers and licences.
* `parquet`: Parquet files, with a document in a column of each row.
* `arrow`: Arrow files, and the folders that Hugging Face's `Dataset.save_to_disk` writes.
* `html`, `markdown`, `docx`, `pdf`: web pages, Markdown, Word documents, PDF; one document a file.
* `mixed`: files of several formats; the ending of a name determines the format (ENDINGS).
"""

import glob
import hashlib
import heapq
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from absl import logging

from data_tools import formats
from data_tools.jobs import Progress
from data_tools.lines import WHOLE, Lines, OddInput, Part, Units, is_archive
from data_tools.sentences import check_language
from keras_bert import files
from keras_bert.columnar_files import ARROW, PARQUET
from keras_bert.errors import InputError
from keras_bert.options import advanced, check, option

_TABLES = {"parquet": PARQUET, "arrow": ARROW}
MIXED = "mixed"
INPUT_FORMATS = ("sentences", "prose", "jsonl", "wiki", *_TABLES, *formats.FILE_FORMATS, MIXED)
# The formats whose files have several fields or columns.
FIELD_FORMATS = ("jsonl", *_TABLES, MIXED)
# The formats of the files of a mixed corpus; .gz, .bz2, .xz or .zst may follow.
ENDINGS = {
    ".txt": "prose",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".docx": "docx",
    ".pdf": "pdf",
}
_DATASET_FILES = ("dataset_dict.json", "dataset_info.json", "state.json")
_SEARCH_BYTES = 1 << 20  # in which the end of a document is searched
# The packages that determine the text of a document, beyond those that all formats use.
FORMAT_PACKAGES = {
    "parquet": ("pyarrow",),
    "arrow": ("pyarrow",),
    "html": ("lxml",),
    "markdown": ("lxml", "markdown-it-py"),
    "docx": ("lxml", "mammoth"),
    "pdf": ("pdfminer.six",),
    MIXED: ("lxml", "mammoth", "markdown-it-py", "pdfminer.six", "pyarrow"),
}


@dataclass(frozen=True)
class Reading:
    """Settings for reading a corpus."""

    GROUP: ClassVar[str] = "data"
    input_format: str = option(
        "sentences",
        "sentences: one per line, a blank line between documents. prose: running text, a blank "
        "line between paragraphs, two or more (or a form feed) between documents. jsonl: one JSON "
        "object per line. wiki: output of WikiExtractor, as tags or JSON. gutenberg: books of "
        "Project Gutenberg. parquet, arrow: one document per row; arrow also reads the folders of "
        "Hugging Face's Dataset.save_to_disk. html, markdown, docx, pdf: one document per file. "
        "mixed: by the ending of each file's name; .txt is prose.",
        choices=INPUT_FORMATS,
    )
    text_field: str = option(
        "text", "Field or column that holds the document, for jsonl, parquet, arrow and mixed."
    )
    language: str = option(
        "en", "Language code (such as en or zh) of the rules that split text into sentences."
    )
    max_bad_line_share: float = advanced(
        0.1,
        "Fraction of the lines or rows of a file that may be undecodable or malformed; 0 rejects "
        "the first one.",
        min=0,
        max=1,
    )

    def __post_init__(self) -> None:
        check(self, as_flags=True)
        if not self.text_field:
            raise InputError("--text_field=: expected the name of a field")
        check_language(self.language)
        if self.text_field != Reading.text_field and self.input_format not in FIELD_FORMATS:
            raise InputError(
                f"--text_field={self.text_field} with --input_format={self.input_format}: "
                f"expected an --input_format of {', '.join(FIELD_FORMATS)}, the formats with a "
                "choice of fields"
            )
        if self.language != Reading.language and self.input_format == "sentences":
            raise InputError(
                f"--language={self.language} with --input_format=sentences: expected another "
                "--input_format, because a file with one sentence per line is not split"
            )


def find_input_files(
    patterns: str, input_format: str = Reading.input_format, flag: str = "input_file"
) -> list[str]:
    """Returns the distinct paths that match a comma-separated list of files, globs and directories.

    `**` in a glob matches nested folders. A directory stands for all files below it, except hidden
    ones (a name with a leading dot). A directory or a glob does not stand for the files that
    `Dataset.save_to_disk` adds to the data of an Arrow dataset. The files are sorted within a glob
    or a directory. Error messages start with `flag`, the flag that provides the list.
    """
    # If the whole value is the name of a file, its commas belong to the name.
    entries = [patterns] if os.path.isfile(patterns) else patterns.split(",")
    paths: dict[str, None] = {}
    for entry in filter(None, (entry.strip() for entry in entries)):
        matches = _expand(entry)
        if input_format in ("arrow", MIXED) and not os.path.isfile(entry):
            _check_datasets(matches)
            matches = list(filter(_is_data, matches))
        if not matches:
            raise InputError(
                f"--{flag}: no file matches {entry!r}; expected a file, glob or folder"
            )
        for path in itertools.filterfalse(os.path.isfile, matches):
            # A pipe or a device may never end, and the next build cannot read it again.
            problem = "is not a regular file" if os.path.exists(path) else "is a broken link"
            raise InputError(f"--{flag}: {path} {problem}; expected text files")
        paths.update(dict.fromkeys(matches))
    if not paths:
        raise InputError(f"--{flag}={patterns!r}: empty list; expected files, globs or folders")
    if input_format == Reading.input_format:
        _reject_other_formats(paths, flag)
    return list(paths)


def _reject_other_formats(paths: Iterable[str], flag: str) -> None:
    """Raises an `InputError` if the default format would read a file whose ending is another's."""
    for path in paths:
        named = ENDINGS.get(_ending(path), "prose")
        if named != "prose":
            raise InputError(
                f"--{flag}: {path} is not a text file with one sentence per line, as "
                f"--input_format={Reading.input_format} expects; use --input_format={named}, or "
                f"{MIXED} for files of several formats"
            )


def _expand(entry: str) -> list[str]:
    if os.path.isfile(entry):  # before glob, because a name may contain "["
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


def read_documents(path: str, reading: Reading, odd: OddInput) -> Iterator[list[str]]:
    """Yields the documents of one file, each a list of sentences.

    After the last document, the counts of empty, malformed or too long input in the file are added
    to `odd`. Some documents may have been yielded before an error in the file is raised.
    """
    for text in read_texts(path, reading, odd):
        yield text.split("\n")


def read_texts(path: str, reading: Reading, odd: OddInput, part: Part = WHOLE) -> Iterator[str]:
    r"""Yields the documents as in `read_documents`, but as texts with `\n` between sentences."""
    share, column, language = reading.max_bad_line_share, reading.text_field, reading.language
    input_format = format_of(path, reading)
    if input_format is None:
        unknown = OddInput()
        unknown.add("unknown_files", {"file": path}, f"ending {_ending(path)!r}")
        odd.merge(unknown)
        return
    try:
        with open(path, "rb") as file:
            if input_format in formats.FILE_FORMATS:
                units = Units(path, "character", share)
                texts = formats.file_texts(units, file, input_format, language)
            elif form := _TABLES.get(input_format):
                units = Units(path, "row", share)
                texts = formats.table_texts(units, file, form, column, language)
            else:
                longest = formats.MAX_JSON_LINE_BYTES if input_format in ("jsonl", "wiki") else None
                units = Lines(path, share, file, longest, part)
                if input_format == "sentences":
                    texts = formats.sentence_texts(units)
                elif input_format == "jsonl":
                    texts = formats.json_texts(units, column, language)
                elif input_format == "wiki":
                    texts = formats.wiki_texts(units, language)
                else:
                    texts = formats.prose_texts(units, language)
            is_empty = True
            for text in texts:
                is_empty = False
                yield text
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    units.check_bad_share()
    if part == WHOLE and is_empty:
        units.add_odd("empty_files")
    odd.merge(units.odd)


def format_of(path: str, reading: Reading) -> str | None:
    """Returns the format of a file; None if it is mixed and the ending of the name is unknown."""
    return ENDINGS.get(_ending(path)) if reading.input_format == MIXED else reading.input_format


def divide(path: str, num_parts: int, reading: Reading) -> list[Part]:
    """Divides a file between documents into at most `num_parts` parts of about equal size."""
    parts, start = [], 0
    if num_parts == 1 or is_archive(path):
        return [WHOLE]
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            end = formats.document_end(format_of(path, reading), file.read(_SEARCH_BYTES))
            for index in range(1, num_parts if end else 1):
                offset = max(size * index // num_parts, start)
                file.seek(offset)
                match = end.search(file.read(_SEARCH_BYTES))
                if match and offset + match.end() < size:
                    parts.append(Part(start, offset + match.end()))
                    start = offset + match.end()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return [*parts, Part(start)]


def _ending(path: str) -> str:
    stem, ending = os.path.splitext(path.lower())
    return os.path.splitext(stem)[1] if is_archive(path) else ending


def _check_datasets(paths: Sequence[str]) -> None:
    """Raises an `InputError` if a folder of `Dataset.save_to_disk` among the files lacks some."""
    existing = {*paths}
    for state in (path for path in paths if os.path.basename(path) == "state.json"):
        content = files.read_json(state)
        files.check_schema(f"{state}:", content, {"_data_files": [{"filename": str}]})
        for entry in content["_data_files"]:
            path = os.path.join(os.path.dirname(state), entry["filename"])
            if path not in existing:
                raise InputError(
                    f"{state}: {path} is missing; expected the complete folder of "
                    "Dataset.save_to_disk"
                )


def _is_data(path: str) -> bool:
    """Returns whether a file is not one of those that `Dataset.save_to_disk` adds to the data."""
    name = os.path.basename(path)
    is_cache = name.startswith("cache-") and name.endswith(".arrow")
    return name not in _DATASET_FILES and not is_cache


# --- held-out documents ---

TRAIN, EVAL = "train", "eval"


def split_documents(
    input_files: Sequence[str], reading: Reading, folder: Path, share: float, max_documents: int
) -> None:
    """Writes the documents of a corpus to train.txt and eval.txt in a new folder.

    The number of held-out documents is `share` of them, but at most `max_documents`, at least one,
    and not all. A document is held out if the checksum of its text is among the smallest of the
    corpus. The choice is therefore as good as random, but does not depend on the names and the
    order of the files. Of several documents with the same text, only the first is written. An
    over-long document is read in parts, each of which counts as a document.

    The folder appears when both files are complete. The files are read twice, so that only the
    checksums of the documents are in memory.
    """
    odd = OddInput()
    remaining: set[bytes] = set()
    with Progress("reading documents", None, "documents") as progress:
        for path in input_files:
            for text in read_texts(path, reading, odd):
                remaining.add(_checksum(text))
                progress.add(1)
    odd.log()
    if len(remaining) < 2:
        number = "no documents" if not remaining else "a single document"
        more = f" and {len(input_files) - 1} more files" if len(input_files) > 1 else ""
        raise InputError(
            f"{input_files[0]}{more}: {number} with text, read as --input_format="
            f"{reading.input_format}; expected at least 2 different documents, because one is held "
            "out (in running text, two blank lines or a form feed separate documents; for one "
            "sentence per line, use --input_format=sentences)"
        )
    count = max(1, min(round(share * len(remaining)), max_documents, len(remaining) - 1))
    evaluated = set(heapq.nsmallest(count, remaining))
    logging.info(
        "%d different documents: %d for training, %d held out",
        len(remaining),
        len(remaining) - len(evaluated),
        len(evaluated),
    )
    with (
        files.atomic_path(folder) as partial,
        Progress("writing documents", len(remaining), "documents") as progress,
    ):
        partial.mkdir()
        with (
            open(partial / f"{TRAIN}.txt", "wb") as train,
            open(partial / f"{EVAL}.txt", "wb") as evaluation,
        ):
            for path in input_files:
                for text in read_texts(path, reading, OddInput()):
                    checksum = _checksum(text)
                    if checksum in remaining:  # Otherwise, it is already written.
                        remaining.remove(checksum)
                        file = evaluation if checksum in evaluated else train
                        file.write(text.encode() + b"\n\n")
                        progress.add(1)


def _checksum(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
