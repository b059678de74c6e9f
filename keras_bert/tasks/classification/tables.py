"""Reads the rows of TSV, CSV, JSONL, Parquet and Arrow files with their line or row numbers.

TSV files are read like GLUE's: there is no quoting, and every tab separates two cells. CSV files
are read like those of spreadsheets: cells may be quoted, and quoted cells may contain line breaks.
JSONL files have one object per line. These files are UTF-8, with or without a byte-order mark.
Parquet and Arrow files need the package pyarrow.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert.common.columnar_files import FORMS, read_batches
from keras_bert.common.errors import InputError, shorten
from keras_bert.common.text_lines import check_no_nul, parse_json, read_lines


@dataclass(frozen=True)
class Row:
    """A row: its number, and the cells (strings or JSON values) of the requested columns.

    The number is that of `unit_of(path)`: of the line, or of the row.
    """

    line: int
    cells: list[Any]


def read_rows(
    path: Path,
    columns: Sequence[str],
    no_header: Sequence[str] = (),
    long_rows: bool = False,
    short_rows: list[int] | None = None,
) -> Iterator[Row]:
    """Yields the requested columns of each row of a file.

    Args:
        path: .csv files are read as CSV, .jsonl and .json files as JSONL, .parquet files as
            Parquet, .arrow files as Arrow, and all others as TSV.
        columns: the names of the requested columns.
        no_header: the names of all columns, for a TSV file without a header.
        long_rows: whether rows may have more cells than the header; extra cells are ignored.
        short_rows: if given, rows with too few cells are skipped, and their line numbers are
            appended to this list. Otherwise they are errors.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a row of invalid format.
    """
    if form := FORMS.get(path.suffix.lower()):
        yield from _columnar(path, form, columns)
        return
    reader = _READERS.get(path.suffix.lower(), _tsv)
    if reader is _jsonl:
        yield from _jsonl(path, columns)
        return
    lines = reader(path)
    header = list(no_header) or next(lines, (0, []))[1]
    places = _places(path, header, columns)
    for line, cells in lines:
        if len(cells) < len(header) and short_rows is not None:
            short_rows.append(line)
            continue
        if len(cells) < len(header) or (len(cells) > len(header) and not long_rows):
            raise InputError(
                f"{path}, line {line}: expected {len(header)} columns, got {len(cells)}: "
                f"{_quoted(cells)}"
            )
        yield Row(line, [cells[place] for place in places])


def is_tsv(path: Path) -> bool:
    """Returns whether `read_rows` reads a file as TSV."""
    return path.suffix.lower() not in (*FORMS, *_READERS)


def unit_of(path: Path) -> str:
    """Returns what the number of a `Row` of a file counts: "line" or "row"."""
    return "row" if path.suffix.lower() in FORMS else "line"


def _columnar(path: Path, form: str, columns: Sequence[str]) -> Iterator[Row]:
    try:
        with open(path, "rb") as file:
            for batch in read_batches(path, file, form, columns):
                for place in range(len(batch.columns[0])):
                    number = batch.first_row + place
                    values = [
                        _cell(column[place], f"{path}, row {number}", name)
                        for column, name in zip(batch.columns, columns, strict=True)
                    ]
                    yield Row(number, values)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _cell(value: Any, where: str, column: str) -> Any:
    """Converts a pyarrow value to a JSON value."""
    try:
        cell = value.as_py()
    except UnicodeDecodeError:
        raise InputError(f"{where}: the text in {column!r} is not UTF-8; expected UTF-8") from None
    if not isinstance(cell, str | bool | int | float | list | dict | None):
        raise InputError(
            f"{where}: {column!r} has a value of the type {value.type}; expected a string, a "
            "number, a boolean, a list or a struct"
        )
    return cell


def _places(path: Path, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    """Returns the index of each requested column in the header."""
    missing = [column for column in columns if column not in header]
    if missing:
        raise InputError(
            f"{path}, line 1: has no column {', '.join(map(repr, missing))}; its header is "
            f"{_quoted(header)}"
        )
    return [list(header).index(column) for column in columns]


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    empty = 0  # Number of the first empty line; an error if another line follows.
    for number, line in read_lines(path):
        check_no_nul(path, number, line)
        if not line:
            empty = empty or number
            continue
        if empty:
            raise InputError(f"{path}, line {empty}: is empty; expected cells separated by tabs")
        yield number, line.split("\t")


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    # Texts may exceed the csv module's limit of 128 kB, which can be raised but not disabled.
    csv.field_size_limit(2**31 - 1)
    number = 1
    try:
        # newline="": the csv module handles line endings, since those within quotes are text.
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for cells in reader:
                check_no_nul(path, number, "".join(cells))
                if cells:
                    yield number, cells
                number = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {number}: is not CSV: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        bad = error.object[error.start : error.start + 10]
        raise InputError(f"{path}: expected UTF-8, got the bytes {bad!r}") from None


def _jsonl(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        values = parse_json(line, f"{path}, line {number}")
        if not isinstance(values, dict):
            raise InputError(
                f"{path}, line {number}: expected a JSON object, got {line.strip()[:80]!r}"
            )
        missing = [column for column in columns if column not in values]
        if missing:
            raise InputError(
                f"{path}, line {number}: has no {', '.join(map(repr, missing))}; it has "
                f"{_quoted(list(values))}"
            )
        yield Row(number, [values[column] for column in columns])


def _quoted(cells: Sequence[str]) -> str:
    return shorten(repr("\t".join(map(str, cells))), 100)


_READERS = {".csv": _csv, ".jsonl": _jsonl, ".json": _jsonl}
