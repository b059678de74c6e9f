"""Reads columns of Parquet and Arrow files in batches of rows, with the package pyarrow.

Memory does not grow with the file: of Parquet, only the requested columns are read, page by page;
of Arrow, one record batch at a time.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from keras_bert.errors import InputError

PARQUET, ARROW = "Parquet", "Arrow"
FORMS = {".parquet": PARQUET, ".arrow": ARROW}  # By the ending of a file name.

_PARQUET_MARK, _ENCRYPTED_MARK, _ARROW_MARK = b"PAR1", b"PARE", b"ARROW1"
_STREAM_MARK = b"\xff\xff\xff\xff"  # starts each message of an Arrow stream
_STREAM_END = _STREAM_MARK + bytes(4)
_BATCH_ROWS, _BATCH_BYTES = 256, 4 << 20
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Batch:
    """The requested columns of consecutive rows.

    Attributes:
        first_row: number of the first row in the file, from 1.
        columns: a pyarrow array for each requested column.
    """

    first_row: int
    columns: list[Any]


def read_batches(
    path: str | os.PathLike, file: BinaryIO, form: str, columns: Sequence[str]
) -> Iterator[Batch]:
    """Yields the requested columns of a Parquet or Arrow file in batches of rows.

    Args:
        path: the name of the file in error messages.
        file: the file, which must be seekable.
        form: PARQUET or ARROW. An Arrow file has the IPC file format or the IPC stream format.
        columns: the names of the requested columns.

    Raises:
        InputError: the file is not of this form, is damaged, or lacks a column; or pyarrow is not
            installed.
    """
    source, schema = _open(path, file, form)
    with _reading(path, "the schema"):
        names = schema.names
    _check_columns(path, names, columns)
    read = _parquet_batches if form == PARQUET else _arrow_batches
    yield from read(path, source, columns)


def read_schema(path: str | os.PathLike, form: str) -> tuple[dict[str, str], dict[bytes, bytes]]:
    """Returns {column: type, as pyarrow writes it} and the metadata of a Parquet or Arrow file.

    The errors are those of `read_batches`, or that the file cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            _, schema = _open(path, file, form)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    with _reading(path, "the schema"):
        return {each.name: str(each.type) for each in schema}, dict(schema.metadata or {})


def is_string(kind: Any) -> bool:
    """Returns whether a pyarrow data type is a string type, possibly encoded as a dictionary."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _open(path: Any, file: BinaryIO, form: str) -> tuple[Any, Any]:
    """Returns a pyarrow reader of a file, and the schema."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"{path}: {form} files need the package pyarrow; install the extra arrow: "
            "pip install 'keras-bert-pipeline[arrow]'"
        ) from None
    _check_form(path, file, form)
    if form == PARQUET:
        with _reading(path, "the footer of the file"):
            # Without pre_buffer, and with a buffer, pages are read as they are needed.
            source = parquet.ParquetFile(
                pa.PythonFile(file, mode="r"),
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            schema = source.schema_arrow
    else:
        is_stream = file.read(len(_STREAM_MARK)) == _STREAM_MARK
        file.seek(0)
        with _reading(path, "the schema"):
            raw = pa.PythonFile(file, mode="r")
            source = pa.ipc.open_stream(raw) if is_stream else pa.ipc.open_file(raw)
            schema = source.schema
    return source, schema


def _check_form(path: Any, file: BinaryIO, form: str) -> None:
    mark = file.read(len(_ARROW_MARK))
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - len(_STREAM_END), 0))
    end = file.read(len(_STREAM_END))
    file.seek(0)
    if not mark:
        raise InputError(f"{path}: is empty; expected {_with_article(form)} file")
    if mark.startswith(_ENCRYPTED_MARK) or end.endswith(_ENCRYPTED_MARK):
        raise InputError(f"{path}: is encrypted; expected a Parquet file without encryption")
    if form == PARQUET:
        is_form, is_complete = mark.startswith(_PARQUET_MARK), end.endswith(_PARQUET_MARK)
    elif mark.startswith(_STREAM_MARK):
        is_form, is_complete = True, end == _STREAM_END
    else:
        is_form, is_complete = mark == _ARROW_MARK, end.endswith(_ARROW_MARK)
    if not is_form:
        raise InputError(
            f"{path}: starts with the bytes {mark!r}; expected {_with_article(form)} file"
        )
    if not is_complete:
        raise InputError(
            f"{path}: ends with the bytes {end!r}; expected a complete {form} file, with its end "
            "marker"
        )


def _with_article(form: str) -> str:
    return f"{'an' if form == ARROW else 'a'} {form}"


def _parquet_batches(path: Any, source: Any, columns: Sequence[str]) -> Iterator[Batch]:
    first_row = 1
    for index in range(source.num_row_groups):
        group = source.metadata.row_group(index)
        where = f"row group {index + 1} (rows {first_row} to {first_row + group.num_rows - 1})"
        row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
        batches = source.iter_batches(
            max(min(_BATCH_ROWS, _BATCH_BYTES // row_bytes), 1),
            row_groups=[index],
            columns=list(columns),
            use_threads=False,
        )
        while True:
            with _reading(path, where):
                if (batch := next(batches, None)) is None:
                    break
            yield Batch(first_row, [batch.column(name) for name in columns])
            first_row += batch.num_rows


def _arrow_batches(path: Any, source: Any, columns: Sequence[str]) -> Iterator[Batch]:
    import pyarrow as pa

    is_file = isinstance(source, pa.RecordBatchFileReader)
    batches = iter(map(source.get_batch, range(source.num_record_batches)) if is_file else source)
    places = [source.schema.get_field_index(name) for name in columns]
    first_row = 1
    while True:
        with _reading(path, f"the record batch from row {first_row}"):
            if (batch := next(batches, None)) is None:
                return
            found = [batch.column(place) for place in places]
            for column in found:
                _validate(column)
        yield Batch(first_row, found)
        first_row += batch.num_rows


def _validate(column: Any) -> None:
    """Checks the buffers of a column, because a damaged offset would read outside of them.

    Text is not checked to be UTF-8.
    """
    import pyarrow as pa

    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
    (column.view(binary) if binary else column).validate(full=True)


def _check_columns(path: Any, names: Sequence[str], columns: Sequence[str]) -> None:
    for column in columns:
        if names.count(column) != 1:
            found = "two columns" if column in names else "no column"
            raise InputError(
                f"{path}: has {found} {column!r}; expected one, among the columns: "
                f"{', '.join(names):.200}"
            )


@contextlib.contextmanager
def _reading(path: Any, where: str) -> Iterator[None]:
    """Converts the errors of pyarrow to an `InputError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: {where} cannot be read: {reason:.200}") from None
