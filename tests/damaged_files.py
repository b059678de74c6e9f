"""Writes damaged files for tests of several programs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

ROWS_PER_GROUP = 50


def write_corrupt_parquet(
    path: Path, columns: Mapping[str, Sequence[Any]], compression: str = "snappy"
) -> Path:
    """Writes a Parquet file with row groups of 50 rows; the texts of the second one are damaged.

    `columns` has more than 50 rows, and the strings in its column `text` are at least 20 bytes.
    """
    parquet.write_table(
        pa.table(columns),
        path,
        row_group_size=ROWS_PER_GROUP,
        compression=compression,
        use_dictionary=False,
        write_page_checksum=True,
    )
    group = parquet.ParquetFile(path).metadata.row_group(1)
    places = [group.column(index) for index in range(group.num_columns)]
    start = next(p.data_page_offset for p in places if p.path_in_schema == "text")
    content = bytearray(path.read_bytes())
    content[start + 60 : start + 120] = b"?" * 60
    path.write_bytes(content)
    return path
