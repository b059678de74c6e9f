"""Reads the texts and labels of GLUE tasks and of the user's own files.

Labels remain as they are in the file; labels.py converts them to numbers.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.tasks.classification.glue import GlueTask
from keras_bert.tasks.classification.tables import Row, is_tsv, read_rows, unit_of


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


def find_glue_folder(task: GlueTask, data_dir: Path) -> Path | None:
    """Returns the folder with a task's files, or None if there is none.

    It is `data_dir`, or the folder in `data_dir` that is named after the task.
    """
    files = [name for name in (task.train, *task.dev.values(), *task.test_files.values()) if name]
    inner = [data_dir / name for name in (task.name, task.name.lower(), *task.folders)]
    for folder in [data_dir, *inner]:
        if any(task.path(folder, name).is_file() for name in files):
            return folder
    return None


def read_glue(task: GlueTask, folder: Path, *, train: bool, dev: bool, test: bool) -> Splits:
    """Reads a GLUE task from the folder that contains its files.

    `train`, `dev` and `test` select the splits to read.

    Raises:
        InputError: a file does not exist, or a row has an invalid format.
    """

    def read(name: str, labelled: bool) -> Texts:
        return read_texts(
            task.path(folder, name),
            task.text_columns,
            task.label_column if labelled else "",
            TableRules(
                no_header=task.no_header if labelled else (),
                long_rows=True,
                # Submissions need every row of the test file.
                skip_short_rows=task.damaged_rows and labelled,
                empty_texts=task.damaged_rows,
            ),
        )

    return Splits(
        read(task.train, True) if train else None,
        {suffix: read(name, True) for suffix, name in task.dev.items()} if dev else {},
        {name: read(file, False) for name, file in task.test_files.items()} if test else {},
    )


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
    if rules is _STRICT and is_tsv(path):
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
