"""Reads a text column of Parquet and Arrow files, one document per row."""

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from data_tools.corpus.archives import is_archive
from data_tools.corpus.paragraphs import Document
from data_tools.corpus.units import Units
from keras_bert.common.columnar_files import is_string, read_batches
from keras_bert.common.errors import InputError

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


class Row(NamedTuple):
    """The place of a row: its number in the file, from 1."""

    number: int


class Rows(Units):
    """The rows of one file, which can be read once.

    `max_bad_line_share` is the maximum fraction of rows with undecodable text.
    """

    name = "row"

    def __init__(self, path: str, max_bad_line_share: float, open_file: Callable[[str], BinaryIO]):
        super().__init__(path, max_bad_line_share)
        self._open_file = open_file

    def texts(self, form: str, column: str) -> Iterator[tuple[Row, str]]:
        """Yields each row with its text in a column; the text of a null is empty.

        `form` is `columnar_files.PARQUET` or `columnar_files.ARROW`.
        """
        if is_archive(self.path):
            raise InputError(
                f"{self.path}: is compressed; expected a {form} file, which has a compression of "
                "its own; decompress the file"
            )
        try:
            with self._open_file(self.path) as file:
                for batch in read_batches(self.path, file, form, [column]):
                    (values,) = batch.columns
                    if not is_string(values.type):
                        raise InputError(
                            f"{self.path}: column {column!r} has the type {values.type}; expected "
                            "strings; --text_field names the column with the text"
                        )
                    for number, value in enumerate(values, start=batch.first_row):
                        self._num_units = number
                        yield Row(number), self._text(Row(number), value)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def _text(self, row: Row, value: Any) -> str:
        try:
            return value.as_py() or ""
        except UnicodeDecodeError:
            value = getattr(value, "value", value)  # of a dictionary
        text = value.as_buffer().to_pybytes().decode(errors="surrogateescape")
        text, times = _ESCAPED_BYTE.subn("\ufffd", text)
        self.add_odd("undecodable_bytes", row, max(times, 1))
        self._add_bad(row.number, "the text is not UTF-8")
        return text


def table_texts(rows: Rows, form: str, column: str, language: str) -> Iterator[str]:
    """Yields the text in each row as a document; line breaks in the text end paragraphs."""
    document = Document(rows, language)
    for row, text in rows.texts(form, column):
        yield from document.of_paragraphs(text.split("\n"), row)
