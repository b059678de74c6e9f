r"""Reads lines of text files, decompresses them, and counts odd input and bad lines.

    stored bytes -> decompressed (.gz, .bz2, .xz, .zst) -> blocks of whole lines -> lines

Input that is empty, malformed or too long is counted by kind in an `OddInput`, so that none is
dropped silently. A file with too many bad lines (or rows, or characters) is rejected, because it
probably has another format than the one that it is read as.
"""

import bz2
import lzma
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import zstandard
from absl import logging

from keras_bert.errors import InputError

# --- odd input ---

FIRST_PLACES = 5

# kind: (singular, plural, how the input was handled)
KINDS = {
    "empty_files": ("file without text", "files without text", "skipped"),
    "empty_documents": ("empty document", "empty documents", "skipped"),
    "long_lines": (
        "over-long line",
        "over-long lines",
        "split at white space (JSON lines are skipped)",
    ),
    "long_documents": ("over-long document", "over-long documents", "split into several"),
    "undecodable_bytes": (
        "undecodable byte",
        "undecodable bytes",
        "replaced by U+FFFD, which the tokenizer drops",
    ),
    "lone_surrogates": (
        "half of a surrogate pair",
        "halves of surrogate pairs",
        "replaced by U+FFFD, which the tokenizer drops",
    ),
    "unknown_files": (
        "file with an unknown ending",
        "files with an unknown ending",
        "skipped",
    ),
    "hard_wrapped_files": (
        "file that looks like hard-wrapped text, not like one sentence per line",
        "files that look like hard-wrapped text, not like one sentence per line",
        "read as one sentence per line and one document per paragraph; for running text, use "
        "--input_format=prose, or gutenberg for books of Project Gutenberg",
    ),
    "malformed_lines": ("malformed line", "malformed lines", "skipped"),
    "unmarked_files": (
        "book without a start marker",
        "books without a start marker",
        "read as a whole",
    ),
}


class OddInput:
    """Counts of odd input by kind (`KINDS`), with the first places of each kind.

    `bad_lines` is a `BadUnits` for a part of a file, which `corpus.read_texts` sets.
    """

    def __init__(self) -> None:
        self.bad_lines: Any = None
        self._counts: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._first: dict[str, list[dict[str, Any]]] = {}

    def add(self, kind: str, place: Mapping[str, Any], detail: str = "", times: int = 1) -> None:
        """Counts `times` occurrences of a kind (`KINDS`), and records the first places.

        `place` has the key "file", and possibly "line" (from 1) with "offset", its byte offset in
        the decompressed file, or "row" (from 1). `detail` describes the place if the kind alone is
        not specific enough.
        """
        self._counts[kind] += times
        self._files[kind] = 1
        places = self._first.setdefault(kind, [])
        if len(places) < FIRST_PLACES:
            places.append({**place} | ({"what": detail} if detail else {}))

    def merge(self, other: "OddInput | Mapping[str, Any]") -> None:
        """Adds the counts of other files, given as an `OddInput` or the result of `to_dict`."""
        for kind, entry in (other.to_dict() if isinstance(other, OddInput) else other).items():
            self._counts[kind] += entry["count"]
            self._files[kind] += entry["files"]
            places = self._first.setdefault(kind, [])
            places += entry["first"][: FIRST_PLACES - len(places)]

    def __getitem__(self, kind: str) -> int:
        return self._counts[kind]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns {kind: {count, files, first: [place]}} for the kinds found.

        A place is that of `add`, and has the detail as "what".
        """
        return {
            kind: {
                "count": self._counts[kind],
                "files": self._files[kind],
                "first": list(self._first[kind]),
            }
            for kind in KINDS
            if self._counts[kind]
        }

    def log(self) -> None:
        """Logs one warning per kind of odd input."""
        for kind, entry in self.to_dict().items():
            count, num_files, first = entry["count"], entry["files"], entry["first"][0]
            singular, plural, handling = KINDS[kind]
            files = f"{first['file']} and {num_files - 1} more" if num_files > 1 else first["file"]
            where = f" in {first['file']}" if num_files > 1 else ""
            if "line" in first:
                where += f" at line {first['line']}, byte offset {first['offset']}"
            elif "row" in first:
                where += f" at row {first['row']}"
            where += f" ({first['what']})" if "what" in first else ""
            logging.warning(
                "%s: %d %s%s: %s",
                files,
                count,
                singular if count == 1 else plural,
                where and f", the first{where}",
                handling,
            )


# --- bad lines and rows ---


class BadUnits(NamedTuple):
    """The number of bad units among those that were read, and a description of the first one."""

    num_bad: int
    num_units: int
    first: str

    def check(self, max_share: float, name: str) -> None:
        """Raises an `InputError` if more than `max_share` of the units, a plural name, are bad."""
        if self.num_bad > max_share * self.num_units:
            share = f"more than --max_bad_line_share={max_share:g} allows"
            if max_share:
                share = f"{self.num_bad} of {self.num_units} {name} are bad, {share}"
            raise InputError(f"{self.first}: {share}")


class Units:
    """The lines, rows or characters of one file.

    `max_bad_line_share` is the maximum fraction of undecodable or malformed ones. The attribute
    `odd` counts odd input. Readers set `num_units` to the number of units that they have read.
    """

    def __init__(self, path: str, max_bad_line_share: float, name: str):
        self.path, self.name, self.odd = path, name, OddInput()
        self._max_bad_line_share = max_bad_line_share
        self.num_units = self._num_bad = self._last_bad = 0
        self._first_bad = ""

    def place(self, unit: Any = None) -> dict[str, Any]:
        """Returns the place of a unit for `OddInput.add`; None is the file as a whole."""
        return {"file": self.path} | ({self.name: unit.number} if unit else {})

    def add_malformed(self, unit: Any, problem: str) -> None:
        """Counts a malformed unit; raises an `InputError` if `max_bad_line_share` is 0."""
        self.odd.add("malformed_lines", self.place(unit), problem)
        self.add_bad(unit.number, problem)

    def add_odd(self, kind: str, unit: Any = None, times: int = 1) -> None:
        """Counts odd input of a kind in `KINDS`, by default in the file as a whole."""
        self.odd.add(kind, self.place(unit), times=times)

    def bad_units(self) -> BadUnits:
        """Returns the number of bad units; must be called after the last unit was read."""
        return BadUnits(self._num_bad, self.num_units, self._first_bad)

    def check_bad_units(self) -> None:
        """Raises an `InputError` if more than `max_bad_line_share` of all units were bad.

        Must be called after the last unit was read. The message describes the first bad unit.
        """
        self.bad_units().check(self._max_bad_line_share, f"{self.name}s")

    def add_bad(self, number: int, problem: str, times: int = 1) -> None:
        """Counts a bad unit, once; or `times` units, from that number on."""
        self._first_bad = self._first_bad or f"{self.path} {self.name} {number}: {problem}"
        self._num_bad += times if number != self._last_bad else 0
        self._last_bad = number
        if not self._max_bad_line_share:
            self.check_bad_units()


# --- compressed files ---


def is_archive(path: str) -> bool:
    """Returns whether the ending of a file name is that of a supported archive, such as .gz."""
    return os.path.splitext(path)[1].lower() in _FORMATS


def decompressed(path: str, raw: BinaryIO) -> "BinaryIO | Archive":
    """Returns the stream `raw` of the file at `path`, decompressed if the file is an archive."""
    return Archive(path, raw) if is_archive(path) else raw


class Archive:
    """Reads consecutive archives until the stream ends.

    The stream readers of the libraries are not strict enough: they ignore data after an archive
    (bz2, lzma), ignore NULs after it (gzip), or accept a truncated archive (zstandard).
    """

    def __init__(self, path: str, raw: BinaryIO):
        self._path, self._raw = path, raw
        self._new_archive, self._stored_bytes = _FORMATS[os.path.splitext(path)[1].lower()]
        self._archive, self._num_complete, self._num_bytes = None, 0, 0
        self._stored, self._content = b"", memoryview(b"")

    def read(self, size: int) -> bytes:
        """Reads at most `size` bytes of decompressed content; returns b"" at the end."""
        while not self._content:
            # bz2 and lzma keep unused input, which bounds the size of their output.
            if not self._stored and getattr(self._archive, "needs_input", True):
                self._stored = self._raw.read(self._stored_bytes)
                if not self._stored:
                    if self._archive is not None:
                        raise self._broken("truncated before its end marker")
                    return b""
            self._decompress(size)
        content, self._content = self._content[:size], self._content[size:]
        self._num_bytes += len(content)
        return bytes(content)

    def _decompress(self, size: int) -> None:
        is_new = self._archive is None
        if is_new:
            self._archive = self._new_archive()
        bound = (size,) if hasattr(self._archive, "needs_input") else ()
        try:
            content = self._archive.decompress(self._stored, *bound)
        except (OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
            if is_new and self._num_complete:
                raise self._broken(
                    "found data after the end of the archive that is not another archive"
                ) from None
            raise self._broken(" ".join(str(error).split())) from None
        self._content, self._stored = memoryview(content), b""
        if self._archive.eof:
            self._stored, self._archive = self._archive.unused_data, None
            self._num_complete += 1

    def _broken(self, problem: str) -> InputError:
        return InputError(
            f"{self._path}: broken archive after {self._num_bytes} bytes of text: {problem}"
        )


# The second value is the number of stored bytes that are decompressed at a time. It bounds memory
# where the library does not: a byte of gzip expands to at most a thousand bytes of text, and a
# kilobyte of zstandard to at most 32 MiB.
_FORMATS: dict[str, tuple[Callable[[], Any], int]] = {
    ".gz": (lambda: zlib.decompressobj(wbits=31), 1 << 14),
    ".bz2": (bz2.BZ2Decompressor, 1 << 16),
    ".xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), 1 << 16),
    ".zst": (lambda: zstandard.ZstdDecompressor().decompressobj(), 1 << 10),
}


# --- lines ---

MAX_LINE_BYTES = 1 << 20

# Fits in a processor's cache. Not more than MAX_LINE_BYTES, so an over-long line spans blocks.
BLOCK_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# The characters that errors="surrogateescape" produces for invalid bytes.
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def decode(content: bytes, encoding: str = "utf-8") -> tuple[str, int]:
    """Decodes text that has undecodable bytes; returns it with U+FFFD for each, and their number.

    The number is at least 1.
    """
    text = content.decode(encoding, "surrogateescape")
    text, times = _ESCAPED_BYTE.subn("\ufffd", text)
    return text, max(times, 1)


class Line(NamedTuple):
    """A line, or a part of an over-long line.

    Attributes:
        number: line number, from 1.
        offset: offset of the first byte in the (decompressed) file.
        content: the bytes without the line end.
        is_partial: whether this is a part of an over-long line.
    """

    number: int
    offset: int
    content: bytes
    is_partial: bool


class Part(NamedTuple):
    """A part of a text file between two line ends; the default is the whole file.

    Attributes:
        start: offset of the first byte.
        end: offset after the last byte; None for the end of the file.
        first_line: number of the first line, from 1.
    """

    start: int = 0
    end: int | None = None
    first_line: int = 1


WHOLE = Part()


class Lines(Units):
    r"""The lines of one UTF-8 text file, or of a part of it, which can be read once.

    Only `\n` and `\r\n` end a line, so a stray U+2028 or vertical tab inside a sentence does not
    split it. A byte order mark is dropped, and an undecodable byte becomes U+FFFD.

    Lines with more than `max_line_bytes` bytes (default: MAX_LINE_BYTES) are split. `raw` is the
    stream of the file's stored bytes.
    """

    def __init__(
        self,
        path: str,
        max_bad_line_share: float,
        raw: BinaryIO,
        max_line_bytes: int | None = None,
        part: Part = WHOLE,
    ):
        super().__init__(path, max_bad_line_share, "line")
        self._file, self.part = decompressed(path, raw), part
        self._max_line_bytes = max_line_bytes or MAX_LINE_BYTES

    def blocks(self) -> Iterator[tuple[Line, str]]:
        """Yields (block, text): a block of whole lines as a `Line`, and its decoded content."""
        for block in self._raw_blocks():
            try:
                text = block.content.decode()
            except UnicodeDecodeError:
                text = "".join([self.decode(line) + "\n" for line in self._lines_of(block)])
            yield block, text

    def lines(self) -> Iterator[Line]:
        """Yields the undecoded lines one by one."""
        for block in self._raw_blocks():
            yield from self._lines_of(block)

    def decode(self, line: Line, encoding: str = "utf-8") -> str:
        """Decodes a line; undecodable bytes are counted and become U+FFFD.

        Raises an `InputError` if the line cannot be decoded and `max_bad_line_share` is 0.
        """
        try:
            return line.content.decode(encoding)
        except UnicodeDecodeError as error:
            at = error.start
        text, times = decode(line.content, encoding)
        byte = f"0x{line.content[at]:02x}"
        place = {"file": self.path, "line": line.number, "offset": line.offset + at}
        self.odd.add("undecodable_bytes", place, byte, times)
        name = "UTF-8" if encoding == "utf-8" else encoding
        self.add_bad(
            line.number,
            f"not {name} (byte {byte} at offset {at} of the line, {line.offset + at} of the file)",
        )
        return text

    def place(self, line: Any = None) -> dict[str, Any]:
        """Returns the place of a line for `OddInput.add`; None is the start of the file."""
        number, offset = (line.number, line.offset) if line else (1, 0)
        return {"file": self.path, "line": number, "offset": offset}

    def add_malformed(self, line: Line, problem: str) -> None:
        """Counts a malformed line; raises an `InputError` if `max_bad_line_share` is 0."""
        self.odd.add("malformed_lines", self.place(line), problem)
        self.add_bad(line.number, f"{problem} (byte offset {line.offset} of the file)")

    @staticmethod
    def _lines_of(block: Line) -> Iterator[Line]:
        number, offset, content, is_partial = block
        for line in content[:-1].split(b"\n"):
            yield Line(number, offset, line, is_partial)
            number += 1
            offset += len(line) + 1

    def _raw_blocks(self) -> Iterator[Line]:
        """Yields blocks of whole lines, or parts of an over-long line with an added line end.

        The boundaries depend only on the text, not on how the file was read.
        """
        first_line = number = self.part.first_line
        offset = self.part.start
        tail, tail_is_partial = bytearray(), False
        for chunk in self._chunks():
            if not offset and not tail:
                self._check_mark(chunk)
                if chunk.startswith(BYTE_ORDER_MARK):
                    chunk, offset = chunk[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
            first_end = chunk.find(b"\n")
            to_end = chunk if first_end < 0 else chunk[: first_end + 1]
            tail += to_end
            while len(tail) - tail.endswith(b"\n") > self._max_line_bytes:
                if not tail_is_partial:
                    self.add_odd("long_lines", Line(number, offset, b"", True))
                part = bytes(tail[: _split_position(tail, self._max_line_bytes)])
                del tail[: len(part)]
                if not is_blank(part):
                    yield Line(number, offset, part + b"\n", True)
                offset += len(part)
                tail_is_partial = True
            if first_end < 0:
                continue
            if tail_is_partial:
                if not is_blank(tail):
                    yield Line(number, offset, bytes(tail), True)
                number, offset = number + 1, offset + len(tail)
                tail, tail_is_partial = bytearray(), False
            last_end = chunk.rfind(b"\n") + 1
            content = bytes(tail) + chunk[first_end + 1 : last_end]
            if content:
                yield Line(number, offset, content, False)
            number, offset = number + content.count(b"\n"), offset + len(content)
            tail = bytearray(chunk[last_end:])
            self.num_units = number - first_line
        if tail:
            self.num_units = number - first_line + 1
        if tail and not (tail_is_partial and is_blank(tail)):
            yield Line(number, offset, bytes(tail) + b"\n", tail_is_partial)

    def _check_mark(self, start: bytes) -> None:
        if start.startswith(_UTF16_MARKS):
            raise InputError(
                f"{self.path}: starts with the byte order mark of UTF-16 (0x{start[:2].hex()}); "
                "expected UTF-8; convert it first, for example with iconv -t utf-8"
            )

    def _chunks(self) -> Iterator[bytes]:
        """Yields the decompressed file in chunks that end at multiples of BLOCK_BYTES."""
        position, end = self.part.start, self.part.end
        if position:
            self._file.seek(position)
        while True:
            size = BLOCK_BYTES - position % BLOCK_BYTES
            size = size if end is None else min(size, end - position)
            chunk = b""
            # A read may return fewer bytes than requested before the end of the file.
            while len(chunk) < size and (more := self._file.read(size - len(chunk))):
                chunk += more
            if not chunk:
                return
            position += len(chunk)
            yield chunk


def is_blank(part: bytes | bytearray) -> bool:
    """Returns whether a line has only white space.

    Such a part of an over-long line is skipped, because a blank line would end a document.
    """
    return not part.decode(errors="replace").strip()


def _split_position(text: bytearray, max_bytes: int) -> int:
    """Returns where to split a line: after white space if possible, else between characters."""
    bounds = max_bytes // 2, max_bytes
    at = max(text.rfind(b" ", *bounds), text.rfind(b"\t", *bounds)) + 1
    if at:
        return at
    at = max_bytes
    while at > max_bytes - 4 and text[at] & 0xC0 == 0x80:  # inside a UTF-8 character
        at -= 1
    return at
