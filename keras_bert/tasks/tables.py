"""Reads the rows, texts and splits of files and of TensorFlow Datasets.

TSV files are read like GLUE's: there is no quoting, and every tab separates two cells. CSV files
are read like those of spreadsheets: cells may be quoted, and quoted cells may contain line breaks.
JSON files have one object per line, or are one list of objects. These files are UTF-8, with or
without a byte-order mark. Parquet and Arrow files need the package pyarrow.
"""

import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from keras_bert.columnar_files import FORMS, read_batches
from keras_bert.errors import InputError, shorten
from keras_bert.files import check_no_nul, parse_json, read_lines

JSON_ENDINGS = (".jsonl", ".json")


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        path: the file, or the name of another source.
        unit: what `number` counts: "line"; "row", in Parquet and Arrow files; or "item" of a list.
        number: the number of the line, row or item, from 1.
        cells: {column: string or JSON value}, with at least the requested columns that exist.
    """

    path: Path | str
    unit: str
    number: int
    cells: Mapping[str, Any]

    @property
    def where(self) -> str:
        """Describes where the row is, such as "train.tsv, line 3"."""
        return f"{self.path}, {self.unit} {self.number}"


def read_rows(
    path: Path,
    columns: Sequence[str],
    optional: Sequence[str] = (),
    *,
    always_json: bool = False,
    no_header: Sequence[str] = (),
    long_rows: bool = False,
    short_rows: list[int] | None = None,
) -> Iterator[Row]:
    """Yields the requested columns of each row of a file.

    Args:
        path: .csv files are read as CSV, .jsonl and .json files as JSON, .parquet files as Parquet,
            .arrow files as Arrow, and all others as TSV.
        columns: the names of the requested columns.
        optional: the names of columns that may be missing; of a JSON file, all are read.
        always_json: whether all files but .parquet and .arrow files are read as JSON.
        no_header: the names of all columns, for a TSV file without a header.
        long_rows: whether rows may have more cells than the header; extra cells are ignored.
        short_rows: if given, rows with too few cells are skipped, and their line numbers are
            appended to this list. Otherwise they are errors.
    """
    ending = path.suffix.lower()
    if ending in FORMS:
        yield from _columnar_rows(path, FORMS[ending], columns, optional)
        return
    if always_json or ending in JSON_ENDINGS:
        yield from _json_rows(path, columns)
        return
    lines = _csv(path) if ending == ".csv" else _tsv(path)
    header = list(no_header) or next(lines, (0, []))[1]
    missing = [column for column in columns if column not in header]
    if missing:
        raise InputError(
            f"{path}, line 1: has no column {', '.join(map(repr, missing))}; its header is "
            f"{_quoted(header)}"
        )
    indices = {name: header.index(name) for name in (*columns, *optional) if name in header}
    for line, cells in lines:
        if len(cells) < len(header) and short_rows is not None:
            short_rows.append(line)
            continue
        if len(cells) < len(header) or (len(cells) > len(header) and not long_rows):
            raise InputError(
                f"{path}, line {line}: expected {len(header)} columns, got {len(cells)}: "
                f"{_quoted(cells)}"
            )
        yield Row(path, "line", line, {name: cells[index] for name, index in indices.items()})


def _json_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Reads a file with one object per line, a list of objects, or an object with it as `data`."""
    lines = ((number, line) for number, line in read_lines(path) if line.strip())
    first, line = next(lines, (0, ""))
    is_list = line.strip() == "{" or line.lstrip().startswith("[")
    if is_list:
        content = parse_json("\n".join([line, *(line for _, line in lines)]), str(path))
    else:
        content = parse_json(line, f"{path}, line {first}") if line else []
        is_list = not line or (isinstance(content, dict) and isinstance(content.get("data"), list))
    if is_list:
        items = content.get("data") if isinstance(content, dict) else content
        if not isinstance(items, list):
            raise InputError(
                f"{path}: expected one JSON object per line, or a list of objects, also as 'data'"
            )
        rows = (("item", number, item) for number, item in enumerate(items, start=1))
    else:
        rows = (("line", n, parse_json(line, f"{path}, line {n}")) for n, line in lines)
        rows = itertools.chain([("line", first, content)], rows)
    for unit, number, values in rows:
        row = Row(path, unit, number, values)
        if not isinstance(values, dict):
            raise InputError(f"{row.where}: expected a JSON object, got {values!r:.80}")
        missing = [column for column in columns if column not in values]
        if missing:
            raise InputError(
                f"{row.where}: has no {', '.join(map(repr, missing))}; it has "
                f"{_quoted(list(values))}"
            )
        yield row


def _columnar_rows(
    path: Path, form: str, columns: Sequence[str], optional: Sequence[str]
) -> Iterator[Row]:
    try:
        with open(path, "rb") as file:
            for first_row, batch in read_batches(path, file, form, columns, optional):
                values = zip(*batch.values(), strict=True)
                for number, values_of_row in enumerate(values, start=first_row):
                    where = f"{path}, row {number}"
                    cells = {
                        name: _cell(value, where, name)
                        for name, value in zip(batch, values_of_row, strict=True)
                    }
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


# --- datasets of TensorFlow Datasets ---
# Nothing is downloaded, because without a network `tfds.load` would retry for minutes.


def open_prepared(name: str, data_dir: str = "") -> Any:
    """Opens the newest prepared version of a dataset as a tfds.core.DatasetBuilder.

    `name` is a dataset and config, such as `glue/mrpc`. `data_dir` is the folder of TensorFlow
    Datasets; empty for the environment variable TFDS_DATA_DIR or ~/tensorflow_datasets.
    """
    root = Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    folders = [path.parent for path in (root / name).glob("*/dataset_info.json")]
    folder = max(folders, key=_version_of, default=None)
    if folder is None:
        raise InputError(
            f"--tfds: {root / name}: no prepared dataset {name} was found, and nothing is "
            f"downloaded automatically; prepare it once with: tfds build {name} --data_dir={root}"
        )
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise InputError(
            "tensorflow-datasets is not installed; --tfds needs it: "
            "pip install 'keras-bert-pipeline[tfds]'"
        ) from None
    return tfds.builder_from_directory(folder)


def read_split(builder: Any, split: str) -> list[Row]:
    """Reads the rows of a split; raises InputError if there is no such split."""
    import tensorflow_datasets as tfds

    path = f"{builder.data_path}, split {split}"
    if split not in builder.info.splits:
        raise InputError(f"{path}: expected one of {', '.join(builder.info.splits)}")
    dataset = tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
    return [Row(path, "row", n, _json_value(row)) for n, row in enumerate(dataset, start=1)]


def _json_value(value: Any) -> Any:
    """Converts a NumPy value of TensorFlow Datasets to a JSON value."""
    if isinstance(value, dict):
        return {name: _json_value(part) for name, part in value.items()}
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def _version_of(folder: Path) -> list[int]:
    return [int(part) for part in folder.name.split(".") if part.isdigit()]


# --- texts ---


class Texts:
    """The n examples of one file.

    Args:
        source: the name of the file or dataset, for error messages.
        columns: a list of n texts for each text of an example: one, or two for pairs.
        labels: n labels as in the file (a list if an example has several); None without labels.
        locations: n strings that describe where the examples are, such as "train.tsv, line 3".
        indices: the identifier of each example in prediction files; the numbers from 0 if empty.
    """

    def __init__(
        self,
        source: str,
        columns: tuple[list[str], ...],
        labels: list[Any] | None,
        locations: Sequence[str],
        indices: Sequence[str] = (),
    ):
        self.source, self.columns, self.labels, self.locations = source, columns, labels, locations
        self.indices = indices or [*map(str, range(len(self)))]
        self.first, *seconds = columns
        self.second = seconds[0] if seconds else None  # None if the examples are single texts

    def __len__(self) -> int:
        return len(self.locations)

    def where(self, index: int) -> str:
        """Describes where an example is, such as "train.tsv, line 3"."""
        return self.locations[index]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yields each example as a tuple of its texts and, if present, its label."""
        labels = [] if self.labels is None else [self.labels]
        return zip(*self.columns, *labels, strict=True)


class Splits(NamedTuple):
    """The training, development and test examples of a run; `train` is None without training.

    `dev` are the examples to score, {suffix of the metric names, such as "_matched": examples}, and
    `test` those to predict, {name of the prediction files: examples}. Both may have the same ones.
    """

    train: Any
    dev: Mapping[str, Any]
    test: Mapping[str, Any]


def read_splits(
    read: Callable[[Any, bool], Any],
    train: Any,
    dev: Mapping[str, Any],
    test: Mapping[str, Any],
    expected: str = "",
    *,
    do_train: bool,
    do_eval: bool,
    do_predict: bool,
) -> Splits:
    """Reads the examples of a run.

    `read` is a function (source, whether its examples must have labels) -> examples. `train` is the
    source of the training examples, such as a Path; empty if there is none, as for the other
    sources. `dev` and `test` are as in `Splits`; an empty source of `test` is that of `dev[""]`.
    `expected` is what the user should give without training examples, for the error message.
    """
    if do_train and not train:
        raise InputError(f"there are no training examples; expected {expected}, or --nodo_train")
    train_set = read(train, True) if do_train else None
    dev_sets = {suffix: read(source, True) for suffix, source in dev.items() if source and do_eval}
    test_sets = {}
    for name, source in test.items() if do_predict else ():
        source = source or dev.get("")
        same = [items for suffix, items in dev_sets.items() if dev[suffix] == source]
        if source:
            test_sets[name] = same[0] if same else read(source, False)
    splits = Splits(train_set, dev_sets, test_sets)
    if not any(splits):
        raise InputError(
            "nothing to do: there are no examples to score or to predict; expected --do_train, or "
            "development or test examples"
        )
    return splits


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
    """Reads the examples of one TSV, CSV, JSON, Parquet or Arrow file, as `read_rows`.

    `text_columns` has a column for each text of an example. Labels are ignored without a
    `label_column`. With `skip_short_rows`, rows with too few cells are skipped and counted.
    """
    columns: tuple[list[str], ...] = tuple([] for _ in text_columns)
    labels: list[Any] = []
    locations: list[str] = []
    short: list[int] = []
    # The cells of TSV files are checked, but not those of GLUE's files, whose quotes are text.
    is_tsv = path.suffix.lower() not in (".csv", *JSON_ENDINGS, *FORMS)
    quoted: list[int] | None = [] if is_tsv and not (no_header or long_rows) else None
    for row in read_rows(
        path,
        [*text_columns, *([label_column] if label_column else [])],
        no_header=no_header,
        long_rows=long_rows,
        short_rows=short if skip_short_rows else None,
    ):
        locations.append(row.where)
        for name, texts in zip(text_columns, columns, strict=True):
            text = row.cells[name]
            if not isinstance(text, str):
                raise InputError(
                    f"{row.where}: expected a text in {name!r}, got "
                    f"{json.dumps(text, default=str)[:80]}"
                )
            if not (text.strip() or empty_texts):
                raise InputError(f"{row.where}: the text in {name!r} is empty; expected text")
            texts.append(text)
        if label_column:
            labels.append(row.cells[label_column])
        if quoted is not None and any(
            '""' in cell[1:-1] and _QUOTED.fullmatch(cell) for cell in row.cells.values()
        ):
            quoted.append(row.number)
        if quoted is not None and label_column and _QUOTED.fullmatch(labels[-1]):
            raise InputError(
                f"{row.where}: the label {labels[-1]!r:.80} has quotes; expected cells without "
                "quotes in a TSV file, or a CSV file"
            )
    if not locations:
        raise InputError(f"{path}: has no rows; expected at least one")
    for lines, problem in (
        (short, "skipped %d rows with too few columns; the first is line %d"),
        (
            quoted,
            "%d rows have texts with the quotes of CSV, which are read as text; the first is line "
            "%d. TSV files have no quotes; use a CSV file",
        ),
    ):
        if lines:
            logging.warning(f"%s: {problem}", path, len(lines), lines[0])
    return Texts(str(path), columns, labels if label_column else None, locations)
