"""Reads the rows and texts of TSV, CSV, JSON, Parquet and Arrow files, with their line numbers.

TSV files are read like GLUE's: there is no quoting, and every tab separates two cells. CSV files
are read like those of spreadsheets: cells may be quoted, and quoted cells may contain line breaks.
JSON files have one object per line, or are one list of objects. These files are UTF-8, with or
without a byte-order mark. Parquet and Arrow files need the package pyarrow.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from absl import logging

from keras_bert.columnar_files import FORMS, read_batches, read_schema
from keras_bert.errors import InputError, shorten
from keras_bert.files import check_no_nul, parse_json, read_lines

JSON_ENDINGS = (".jsonl", ".json")


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        path: the file.
        unit: what `number` counts: "line"; "row", in Parquet and Arrow files; or "item" of a list.
        number: the number of the line, row or item, from 1.
        cells: the strings or JSON values of the requested columns.
    """

    path: Path
    unit: str
    number: int
    cells: list[Any]

    @property
    def where(self) -> str:
        """Describes where the row is, such as "train.tsv, line 3"."""
        return f"{self.path}, {self.unit} {self.number}"


def read_rows(
    path: Path,
    columns: Sequence[str],
    optional: Sequence[str] = (),
    *,
    no_header: Sequence[str] = (),
    long_rows: bool = False,
    short_rows: list[int] | None = None,
) -> Iterator[Row]:
    """Yields the requested columns of each row of a file.

    Args:
        path: .csv files are read as CSV, .jsonl and .json files as JSON (see `read_objects`),
            .parquet files as Parquet, .arrow files as Arrow, and all others as TSV.
        columns: the names of the requested columns.
        optional: the names of further columns; the cells of a column that is missing are None.
        no_header: the names of all columns, for a TSV file without a header.
        long_rows: whether rows may have more cells than the header; extra cells are ignored.
        short_rows: if given, rows with too few cells are skipped, and their line numbers are
            appended to this list. Otherwise they are errors.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a row of invalid format.
    """
    ending = path.suffix.lower()
    if ending in FORMS:
        yield from _columnar(path, FORMS[ending], columns, optional)
    elif ending in JSON_ENDINGS:
        yield from _json_rows(path, columns, optional)
    else:
        lines = _csv(path) if ending == ".csv" else _tsv(path)
        header = list(no_header) or next(lines, (0, []))[1]
        indices = _indices(path, header, columns, optional)
        for line, cells in lines:
            if len(cells) < len(header) and short_rows is not None:
                short_rows.append(line)
                continue
            if len(cells) < len(header) or (len(cells) > len(header) and not long_rows):
                raise InputError(
                    f"{path}, line {line}: expected {len(header)} columns, got {len(cells)}: "
                    f"{_quoted(cells)}"
                )
            yield Row(path, "line", line, [None if i is None else cells[i] for i in indices])


def read_objects(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Yields (unit, number, value), as in a `Row`, for each JSON value of a file.

    The file has one value per line, or is a list of values, or an object with this list as `data`.
    """
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    number, line = next(lines, (0, ""))
    if line.strip() == "{" or line.lstrip().startswith("["):
        content = parse_json("\n".join([line, *(line for _, line in lines)]), str(path))
    elif line:
        content = parse_json(line, f"{path}, line {number}")
        if not (isinstance(content, dict) and isinstance(content.get("data"), list)):
            yield "line", number, content
            for number, line in lines:
                yield "line", number, parse_json(line, f"{path}, line {number}")
            return
    else:
        return
    items = content.get("data") if isinstance(content, dict) else content
    if not isinstance(items, list):
        raise InputError(
            f"{path}: expected one JSON object per line, or a list of objects, also as 'data'"
        )
    yield from (("item", number, item) for number, item in enumerate(items, start=1))


def _json_rows(path: Path, columns: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    for unit, number, values in read_objects(path):
        where = f"{path}, {unit} {number}"
        if not isinstance(values, dict):
            raise InputError(f"{where}: expected a JSON object, got {values!r:.80}")
        missing = [column for column in columns if column not in values]
        if missing:
            raise InputError(
                f"{where}: has no {', '.join(map(repr, missing))}; it has {_quoted(list(values))}"
            )
        yield Row(path, unit, number, [values.get(column) for column in (*columns, *optional)])


def _columnar(
    path: Path, form: str, columns: Sequence[str], optional: Sequence[str]
) -> Iterator[Row]:
    names = [*columns, *optional]
    if optional:
        present, _ = read_schema(path, form)
        columns = [*columns, *(name for name in optional if name in present)]
        if not columns:
            raise InputError(
                f"{path}: has the columns {', '.join(present):.200}; expected some of "
                f"{', '.join(optional)}"
            )
    try:
        with open(path, "rb") as file:
            for batch in read_batches(path, file, form, columns):
                arrays = dict(zip(columns, batch.columns, strict=True))
                for index in range(len(batch.columns[0])):
                    number = batch.first_row + index
                    cells = [
                        _cell(arrays[name][index], f"{path}, row {number}", name)
                        if name in arrays
                        else None
                        for name in names
                    ]
                    yield Row(path, "row", number, cells)
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


def _indices(
    path: Path, header: Sequence[str], columns: Sequence[str], optional: Sequence[str]
) -> list[int | None]:
    """Returns the index of each requested column in the header; None for a missing one."""
    index = {name: i for i, name in reversed([*enumerate(header)])}
    missing = [column for column in columns if column not in index]
    if missing:
        raise InputError(
            f"{path}, line 1: has no column {', '.join(map(repr, missing))}; its header is "
            f"{_quoted(header)}"
        )
    return [index.get(column) for column in (*columns, *optional)]


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


def _quoted(cells: Sequence[str]) -> str:
    return shorten(repr("\t".join(map(str, cells))), 100)


# --- texts ---


@dataclass(frozen=True)
class Texts:
    """The n examples of one file.

    Attributes:
        source: the name of the file or dataset, for error messages.
        columns: a list of n texts for each text of an example: one, or two for pairs.
        labels: n labels as in the file (a list if an example has several); None without labels.
        locations: n strings that describe where the examples are, such as "train.tsv, line 3".
        indices: the identifier of each example in prediction files; the numbers from 0 if empty.
    """

    source: str
    columns: tuple[list[str], ...]
    labels: list[Any] | None
    locations: Sequence[str]
    indices: Sequence[str] = ()

    def __post_init__(self):
        if not self.indices:
            object.__setattr__(self, "indices", [str(index) for index in range(len(self))])

    def __len__(self) -> int:
        return len(self.locations)

    @property
    def first(self) -> list[str]:
        """The n first texts."""
        return self.columns[0]

    @property
    def second(self) -> list[str] | None:
        """The n second texts; None if the examples are single texts."""
        return self.columns[1] if len(self.columns) > 1 else None

    def where(self, index: int) -> str:
        """Describes where an example is, such as "train.tsv, line 3"."""
        return self.locations[index]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yields each example as a tuple of its texts and, if present, its label."""
        labels = [] if self.labels is None else [self.labels]
        return zip(*self.columns, *labels, strict=True)


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


_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def read_texts(
    path: Path,
    text_columns: Sequence[str],
    label_column: str = "",
    *,
    no_header: Sequence[str] = (),
    long_rows: bool = False,
    skip_short_rows: bool = False,
    empty_texts: bool = False,
) -> Texts:
    """Reads the examples of one TSV, CSV, JSON, Parquet or Arrow file.

    Args:
        path: the file, as for `read_rows`.
        text_columns: the name of the column of each text of an example.
        label_column: the name of the column of the labels; if empty, labels are ignored.
        no_header: the names of all columns, for a TSV file without a header.
        long_rows: whether rows may have more cells than the header.
        skip_short_rows: whether to skip and count rows with too few cells.
        empty_texts: whether texts may be empty.

    Raises:
        InputError: the file has no rows, a row has an invalid format, or a text is empty.
    """
    columns = [*text_columns, *([label_column] if label_column else [])]
    short: list[int] = []
    rows = list(
        read_rows(
            path,
            columns,
            no_header=no_header,
            long_rows=long_rows,
            short_rows=short if skip_short_rows else None,
        )
    )
    if not rows:
        raise InputError(f"{path}: has no rows; expected at least one")
    if short:
        logging.warning(
            "%s: skipped %d rows with too few columns; the first is line %d",
            path,
            len(short),
            short[0],
        )
    for index, column in enumerate(text_columns):
        for row in rows:
            text = row.cells[index]
            if not isinstance(text, str):
                raise InputError(
                    f"{row.where}: expected a text in {column!r}, got "
                    f"{json.dumps(text, default=str)[:80]}"
                )
            if not (text.strip() or empty_texts):
                raise InputError(f"{row.where}: the text in {column!r} is empty; expected text")
    is_tsv = path.suffix.lower() not in (".csv", *JSON_ENDINGS, *FORMS)
    if is_tsv and not (no_header or long_rows):  # GLUE's files have quotes that are text.
        _check_quotes(path, rows, bool(label_column))
    return Texts(
        source=str(path),
        columns=tuple([row.cells[i] for row in rows] for i in range(len(text_columns))),
        labels=[row.cells[-1] for row in rows] if label_column else None,
        locations=[row.where for row in rows],
    )


def _check_quotes(path: Path, rows: Sequence[Row], has_labels: bool) -> None:
    """Reports cells that are quoted as in CSV: rejects labels, and warns of texts."""
    for row in rows if has_labels else ():
        if _QUOTED.fullmatch(row.cells[-1]):
            raise InputError(
                f"{row.where}: the label {row.cells[-1]!r:.80} has quotes; expected cells without "
                "quotes in a TSV file, or a CSV file"
            )
    quoted = [
        row.number
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
