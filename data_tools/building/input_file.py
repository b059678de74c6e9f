"""Reads the documents of one input file and describes it, in one pass over its bytes.

A large text file is first divided between two documents, and several processes read its parts.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from data_tools.corpus import lines
from data_tools.corpus.documents import Reading, format_of, read_texts
from data_tools.corpus.formats import starts_document
from data_tools.corpus.lines import WHOLE, Part
from data_tools.corpus.odd_input import OddInput
from data_tools.corpus.units import BadUnits
from keras_bert.common.errors import InputError

_BLOCK_BYTES = 1 << 20


def open_unbuffered(path: str) -> BinaryIO:
    """Opens a local file for reading large blocks."""
    return open(path, "rb", buffering=0)


class InputFile:
    """An input file whose bytes are hashed and counted as its documents are read.

    The checksum therefore belongs to the bytes that the documents came from, even if the file
    changes at the same time.

    Args:
        path: path of the file.
        reading: settings for reading documents.
        open_file: opens a path and returns the stream of its stored bytes.
        on_read: called with the number of bytes of every block that is read.
        part: the part of the file to read; one that is not the whole file is not hashed.
    """

    def __init__(
        self,
        path: str,
        reading: Reading,
        open_file: Callable[[str], BinaryIO] = open_unbuffered,
        on_read: Callable[[int], None] = lambda num_bytes: None,
        part: Part = WHOLE,
    ):
        self._path, self._reading, self._part = path, reading, part
        self._open_file, self._on_read = open_file, on_read
        self._sha256, self._num_bytes, self._odd = hashlib.sha256(), 0, OddInput()
        self._num_documents = self._num_sentences = self._text_bytes = self._longest = 0

    def documents(self) -> Iterator[bytes]:
        """Yields each document as UTF-8 text with one sentence per line; can be called once.

        Raises:
            InputError: see `read_documents`.
        """
        for document in read_texts(self._path, self._reading, self._odd, self._open, self._part):
            text = document.encode()
            sentences = document.count("\n") + 1
            self._num_documents += 1
            self._num_sentences += sentences
            self._text_bytes += len(text)
            self._longest = max(self._longest, sentences)
            yield text

    def entry(self) -> dict[str, Any]:
        """Returns the manifest entry of the file; call it after the last document is read.

        Returns:
            file, bytes and sha256 of the stored file; documents and sentences, their number;
            text_bytes, the size of all documents in UTF-8; longest_document, the largest number of
            sentences in a document; and odd (`OddInput.to_dict`). That of a part has bad_lines
            (`units.BadUnits`), and no meaningful sha256.
        """
        bad_lines = {} if self._part == WHOLE else {"bad_lines": self._odd.bad_lines}
        return {
            "file": self._path,
            "bytes": self._num_bytes,
            "sha256": self._sha256.hexdigest(),
            "documents": self._num_documents,
            "sentences": self._num_sentences,
            "text_bytes": self._text_bytes,
            "longest_document": self._longest,
            "odd": self._odd.to_dict(),
        } | bad_lines

    def _open(self, path: str) -> "_HashedStream":
        stream = self._open_file(path)
        if self._part != WHOLE:
            return _CountedStream(stream, self._add)
        return _HashedStream(path, stream, self._add)

    def _add(self, data: bytes) -> None:
        if self._part == WHOLE:
            self._sha256.update(data)
        self._num_bytes += len(data)
        self._on_read(len(data))


@dataclass(frozen=True)
class DividedFile:
    """A text file in several parts, which start and end between two documents.

    Attributes:
        state: size and time of the last change when the file was divided.
    """

    path: str
    parts: list[Part]
    num_bytes: int
    sha256: str
    state: tuple[int, int]

    @classmethod
    def of(
        cls, path: str, reading: Reading, num_parts: int, on_read: Callable[[int], None]
    ) -> "DividedFile":
        """Divides a file into at most `num_parts` parts of about the same size.

        `on_read` is called with the number of bytes of every block that is read.
        """
        digest = hashlib.sha256()
        parts, line = [], 1
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                starts = _part_starts(file, status.st_size, num_parts, reading)
                for start, end in zip(starts, [*starts[1:], None], strict=True):
                    parts.append(Part(start, end, line))
                    file.seek(start)
                    while block := file.read(
                        _BLOCK_BYTES if end is None else min(_BLOCK_BYTES, end - file.tell())
                    ):
                        digest.update(block)
                        line += block.count(b"\n")
                        on_read(len(block))
                num_bytes = file.tell()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
        state = status.st_size, status.st_mtime_ns
        return cls(path, parts, num_bytes, digest.hexdigest(), state)

    def entry(self, parts: list[dict[str, Any]], reading: Reading) -> dict[str, Any]:
        """Returns the manifest entry of the file, given those of its parts in their order.

        Raises:
            InputError: too many lines are bad, or the file has changed.
        """
        status = os.stat(self.path)
        if (status.st_size, status.st_mtime_ns) != self.state:
            raise _changed_error(self.path)
        bad = [part["bad_lines"] for part in parts]
        first = next((part.first for part in bad if part.first), "")
        BadUnits(sum(b.num_bad for b in bad), sum(b.num_units for b in bad), first).check(
            reading.max_bad_line_share, "lines"
        )
        odd = OddInput()
        for part in parts:
            odd.merge(part["odd"])
        totals = {
            name: sum(part[name] for part in parts)
            for name in ("documents", "sentences", "text_bytes")
        }
        if not totals["documents"]:
            odd.add("empty_files", {"file": self.path, "line": 1, "offset": 0})
        return {
            "file": self.path,
            "bytes": self.num_bytes,
            "sha256": self.sha256,
            **totals,
            "longest_document": max(part["longest_document"] for part in parts),
            "odd": {kind: entry | {"files": 1} for kind, entry in odd.to_dict().items()},
        }


def _part_starts(file: BinaryIO, size: int, num_parts: int, reading: Reading) -> list[int]:
    """Returns the offsets at which the parts of a file start; the first one is 0."""
    start = iter(
        lambda: file.readline(lines.MAX_LINE_BYTES).removeprefix(lines.BYTE_ORDER_MARK), b""
    )
    first = next(filter(None, map(bytes.strip, start)), b"")
    is_start = starts_document(format_of(file.name, reading), first)
    starts = [0]
    for index in range(1, num_parts):
        offset, end = (size * i // num_parts for i in (index, index + 1))
        file.seek(offset)
        before = b"x", b"x"  # The offset may be inside of a line.
        while offset < end and (line := file.readline(lines.MAX_LINE_BYTES)):
            is_rest = not before[1].endswith(b"\n")
            # The line must be in the same block as the one before, because blank lines are counted
            # within a block.
            blocks = {at // lines.BLOCK_BYTES for at in (offset - 1, offset + len(line) - 1)}
            if not is_rest and len(blocks) == 1 and is_start(*before, line):
                starts.append(offset)
                break
            before = before[1], (b"x" if is_rest else b"") + line
            offset += len(line)
    return starts


class _CountedStream(io.RawIOBase):
    """A binary stream that calls `on_read` with all bytes that are read."""

    def __init__(self, stream: BinaryIO, on_read: Callable[[bytes], None]):
        self._stream, self._on_read = stream, on_read
        self.seek = stream.seek

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._on_read(data)
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()


class _HashedStream(io.RawIOBase):
    """A binary stream that calls `on_read` once with each byte of a file, in their order.

    Files such as Parquet are read in another order, or not completely. Then a part that was skipped
    is read for `on_read` when a later part is read, or at the end.
    """

    # Longer jumps are those to the end of the file and back.
    _MAX_SKIPPED_BYTES = 64 << 20

    def __init__(self, path: str, stream: BinaryIO, on_read: Callable[[bytes], None]):
        self._path, self._stream, self._on_read = path, stream, on_read
        self._position = self._num_passed = 0
        self._is_in_order = True
        self._state = self._file_state()

    def __enter__(self) -> "_HashedStream":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and not self._is_in_order:
                self._pass_until(None)
                if self._file_state() != self._state:
                    raise _changed_error(self._path)
        finally:
            self.close()

    def read(self, size: int = -1) -> bytes:
        if 0 < self._position - self._num_passed <= self._MAX_SKIPPED_BYTES:
            self._pass_until(self._position)
        data = self._stream.read(size)
        if self._position <= self._num_passed < self._position + len(data):
            new = data[self._num_passed - self._position :]
            self._on_read(new)
            self._num_passed += len(new)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = self._stream.seek(offset, whence)
        self._is_in_order &= position == self._position
        self._position = position
        return position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _pass_until(self, end: int | None) -> None:
        """Calls `on_read` with the bytes before `end`, or with all bytes, that it has not had."""
        self._stream.seek(self._num_passed)
        while end is None or self._num_passed < end:
            rest = _BLOCK_BYTES if end is None else min(end - self._num_passed, _BLOCK_BYTES)
            data = self._stream.read(rest)
            if not data:
                break
            self._on_read(data)
            self._num_passed += len(data)
        self._stream.seek(self._position)

    def _file_state(self) -> tuple[int, int] | None:
        try:
            state = os.fstat(self._stream.fileno())
        except (AttributeError, OSError):  # not a local file
            return None
        return state.st_size, state.st_mtime_ns


def _changed_error(path: str) -> InputError:
    return InputError(f"{path}: the content changed while it was read; run the same command again")
