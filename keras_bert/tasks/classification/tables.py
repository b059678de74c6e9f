"""Reads the rows and texts of TSV, CSV, JSONL, Parquet and Arrow files, with their line numbers.

TSV files are read like GLUE's: there is no quoting, and every tab separates two cells. CSV files
are read like those of spreadsheets: cells may be quoted, and quoted cells may contain line breaks.
JSONL files have one object per line. These files are UTF-8, with or without a byte-order mark.
Parquet and Arrow files need the package pyarrow.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.columnar_files import FORMS, read_batches
from keras_bert.errors import InputError, shorten
from keras_bert.files import check_no_nul, parse_json, read_lines


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

# --- texts ---


@dataclass(frozen=True)
class Texts:
    """The n examples of one file.

    Attributes:
        source: the name of the file or dataset, for error messages.
        first: n texts.
        second: n second texts, or None if the examples are single texts.
        labels: n labels as in the file (a list if an example has several); None without labels.
        places: n numbers that identify the examples in error messages, such as line numbers.
        indices: the identifier of each example in prediction files.
        unit: the word before the number from `places` in error messages, such as "line".
    """

    source: str
    first: list[str]
    second: list[str] | None
    labels: list[Any] | None
    places: Sequence[int]
    indices: list[str]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.places)

    def where(self, index: int) -> str:
        """Describes where an example is, such as "train.tsv, line 3"."""
        return f"{self.source}, {self.unit} {self.places[index]}"

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yields each example as a tuple of its texts and, if present, its label."""
        columns = (self.first, self.second, self.labels)
        return zip(*(column for column in columns if column is not None), strict=True)


@dataclass(frozen=True)
class Splits:
    """The training, development and test examples of a run.

    `train` is None if the run does not train. `dev` is {suffix of the metric names, such as
    "_matched": examples}, and `test` is {name of the prediction files: examples}. A Texts object
    may be in both `dev` and `test`.
    """

    train: Texts | None
    dev: Mapping[str, Texts] = field(default_factory=dict)
    test: Mapping[str, Texts] = field(default_factory=dict)


@dataclass(frozen=True)
class TableRules:
    """Describes which deviations from a regular table are accepted.

    Attributes:
        no_header: the names of all columns, for a TSV file without a header.
        long_rows: whether rows may have more cells than the header.
        skip_short_rows: whether to skip and count rows with too few cells.
        empty_texts: whether texts may be empty.
    """

    no_header: Sequence[str] = ()
    long_rows: bool = False
    skip_short_rows: bool = False
    empty_texts: bool = False


_STRICT = TableRules()
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_texts(
    path: Path,
    text_columns: Sequence[str],
    label_column: str = "",
    rules: TableRules = _STRICT,
) -> Texts:
    """Reads the examples of one TSV, CSV, JSONL, Parquet or Arrow file.

    `text_columns` has the name of one column, or of two for pairs. If `label_column` is empty,
    labels are ignored.

    Raises:
        InputError: the file has no rows, a row has an invalid format, or a text is empty.
    """
    columns = [*text_columns, *([label_column] if label_column else [])]
    short: list[int] = []
    skipped = short if rules.skip_short_rows else None
    rows = list(read_rows(path, columns, rules.no_header, rules.long_rows, skipped))
    if not rows:
        raise InputError(f"{path}: has no rows; expected at least one")
    if short:
        logging.warning(
            "%s: skipped %d rows with too few columns; the first is line %d",
            path,
            len(short),
            short[0],
        )
    check_text_cells(path, rows, text_columns, empty_texts=rules.empty_texts)
    if rules is _STRICT and path.suffix.lower() not in (*FORMS, *_READERS):  # TSV
        _check_quotes(path, rows, bool(label_column))
    return Texts(
        source=str(path),
        first=[row.cells[0] for row in rows],
        second=[row.cells[1] for row in rows] if len(text_columns) == 2 else None,
        labels=[row.cells[-1] for row in rows] if label_column else None,
        places=[row.line for row in rows],
        indices=[str(index) for index in range(len(rows))],
        unit=unit_of(path),
    )


def _check_quotes(path: Path, rows: Sequence[Row], has_labels: bool) -> None:
    """Reports cells that are quoted as in CSV: rejects labels, and warns of texts."""
    for row in rows if has_labels else ():
        if _QUOTED.fullmatch(row.cells[-1]):
            raise InputError(
                f"{path}, line {row.line}: the label {row.cells[-1]!r:.80} has quotes; expected "
                "cells without quotes in a TSV file, or a CSV file"
            )
    quoted = [
        row.line
        for row in rows
        if any('""' in cell[1:-1] and _QUOTED.fullmatch(cell) for cell in row.cells)
    ]
    if quoted:
        logging.warning(
            "%s: %d rows have texts with the quotes of CSV, which are read as text; the first is "
            "line %d. TSV files have no quotes; use a CSV file",
            path,
            len(quoted),
            quoted[0],
        )


def check_text_cells(
    path: Path, rows: Sequence[Row], text_columns: Sequence[str], *, empty_texts: bool = False
) -> None:
    """Checks the first cells of each row, which must be texts, one for each of `text_columns`.

    Raises:
        InputError: a cell is not a string, or is empty and `empty_texts` is false.
    """
    unit = unit_of(path)
    for place, column in enumerate(text_columns):
        for row in rows:
            text = row.cells[place]
            if not isinstance(text, str):
                raise InputError(
                    f"{path}, {unit} {row.line}: expected a text in {column!r}, got "
                    f"{json.dumps(text, default=str)[:80]}"
                )
            if not (text.strip() or empty_texts):
                raise InputError(
                    f"{path}, {unit} {row.line}: the text in {column!r} is empty; expected text"
                )
