"""Reads columns of Parquet and Arrow files in batches of rows, with the package pyarrow.

Memory does not grow with the file: of Parquet, only the requested columns are read, page by page;
of Arrow, one record batch at a time.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from keras_bert.errors import InputError

PARQUET, ARROW = "Parquet", "Arrow"
FORMS = {".parquet": PARQUET, ".arrow": ARROW}  # By the ending of a file name.

_STREAM_MARK = b"\xff\xff\xff\xff"  # starts each message of an Arrow stream
_STREAM_END = _STREAM_MARK + bytes(4)
_BATCH_ROWS, _BATCH_BYTES = 256, 4 << 20
_BUFFER_BYTES = 1 << 20


def read_batches(
    path: str | os.PathLike,
    file: BinaryIO,
    form: str,
    columns: Sequence[str],
    optional: Sequence[str] = (),
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the requested columns of a Parquet or Arrow file in batches of rows.

    The file must be seekable; `path` is its name in error messages. `form` is PARQUET, or ARROW for
    the IPC file format and the IPC stream format. `optional` columns may be missing.

    Yields:
        The number of the batch's first row in the file, from 1, and {column: pyarrow array}.
    """
    source, schema = _open(path, file, form)
    with _reading(path, "the schema"):
        names = schema.names
    requested = [*columns, *(name for name in optional if name in names)]
    for column in requested or optional[:1]:
        if names.count(column) != 1:
            problem = "two columns" if column in names else "no column"
            raise InputError(
                f"{path}: has {problem} {column!r}; expected one, among the columns: "
                f"{', '.join(names):.200}"
            )
    read = _parquet_batches if form == PARQUET else _arrow_batches
    for first_row, batch in read(path, source, list(dict.fromkeys(requested))):
        yield first_row, {name: batch.column(name) for name in requested}


def read_metadata(path: str | os.PathLike, form: str) -> dict[bytes, bytes]:
    """Returns the metadata of the schema of a file; the errors are those of `read_batches`."""
    with open(path, "rb") as file:
        return dict(_open(path, file, form)[1].metadata or {})


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
    is_stream = form == ARROW and file.read(len(_STREAM_MARK)) == _STREAM_MARK
    if is_stream:  # pyarrow would read a truncated stream as a shorter one.
        file.seek(-len(_STREAM_END), os.SEEK_END)
        if file.read() != _STREAM_END:
            raise InputError(f"{path}: expected a complete Arrow stream, with its end marker")
    file.seek(0)
    raw = pa.PythonFile(file, mode="r")
    with _reading(path, f"the {form} file"):
        if form == ARROW:
            source = pa.ipc.open_stream(raw) if is_stream else pa.ipc.open_file(raw)
            return source, source.schema
        # Without pre_buffer, and with a buffer, pages are read as they are needed.
        source = parquet.ParquetFile(
            raw, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
        )
        return source, source.schema_arrow


def _parquet_batches(path: Any, source: Any, columns: list[str]) -> Iterator[tuple[int, Any]]:
    first_row = 1
    for index in range(source.num_row_groups):
        group = source.metadata.row_group(index)
        where = f"row group {index + 1} (rows {first_row} to {first_row + group.num_rows - 1})"
        row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
        batches = source.iter_batches(
            max(min(_BATCH_ROWS, _BATCH_BYTES // row_bytes), 1),
            row_groups=[index],
            columns=columns,
            use_threads=False,
        )
        while True:
            with _reading(path, where):
                if (batch := next(batches, None)) is None:
                    break
            yield first_row, batch
            first_row += batch.num_rows


def _arrow_batches(path: Any, source: Any, columns: list[str]) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa

    is_file = isinstance(source, pa.RecordBatchFileReader)
    batches = iter(map(source.get_batch, range(source.num_record_batches)) if is_file else source)
    # Text is not checked to be UTF-8.
    binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    first_row = 1
    while True:
        with _reading(path, f"the record batch from row {first_row}"):
            if (batch := next(batches, None)) is None:
                return
            for values in map(batch.column, columns):
                # A damaged offset would read outside of the buffers.
                as_binary = binary.get(values.type)
                (values.view(as_binary) if as_binary else values).validate(full=True)
        yield first_row, batch
        first_row += batch.num_rows


@contextlib.contextmanager
def _reading(path: Any, where: str) -> Iterator[None]:
    """Converts the errors of pyarrow to an `InputError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: {where} cannot be read: {reason:.200}") from None
