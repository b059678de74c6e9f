"""Reads lines of text files, decompresses them, and counts odd input and bad lines.

    stored bytes -> decompressed (.gz, .bz2, .xz, .zst) -> blocks -> lines

Input that is empty, malformed or too long is counted by kind in an `OddInput`, so that none is
dropped silently. A file with too many bad lines (or rows, or characters) is rejected, because it
probably has another format than the one that it is read as.
"""

import bz2
import functools
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import zstandard
from absl import logging

from keras_bert.errors import InputError

# --- odd input ---

FIRST_PLACES = 5

_DROPPED = "replaced by U+FFFD, which the tokenizer drops"
# kind: (its name, how the input was handled)
KINDS = {
    "empty_files": ("files without text", "skipped"),
    "empty_documents": ("empty documents", "skipped"),
    "long_lines": ("over-long lines", "split at white space (JSON lines are skipped)"),
    "long_documents": ("over-long documents", "split into several"),
    "undecodable_bytes": ("undecodable bytes", _DROPPED),
    "lone_surrogates": ("halves of surrogate pairs", _DROPPED),
    "unknown_files": ("files with an unknown ending", "skipped"),
    "hard_wrapped_files": (
        "files that look like hard-wrapped text, not like one sentence per line",
        "read as one sentence per line and one document per paragraph; for running text, use "
        "--input_format=prose, or gutenberg for books of Project Gutenberg",
    ),
    "malformed_lines": ("malformed lines", "skipped"),
    "unmarked_files": ("books without a start marker", "read as a whole"),
}


class OddInput(dict[str, dict[str, Any]]):
    """Odd input by kind (`KINDS`): {kind: {count, files, first: [place]}}.

    A place has the key "file", and possibly "line" (from 1) with "offset", its byte offset in the
    decompressed file, or "row" (from 1), and "what" if the kind alone is not specific enough.
    """

    def add(self, kind: str, place: Mapping[str, Any], detail: str = "", times: int = 1) -> None:
        """Counts `times` occurrences of a kind in one file, and records the first places."""
        entry = self.setdefault(kind, {"count": 0, "files": 1, "first": []})
        entry["count"] += times
        if len(entry["first"]) < FIRST_PLACES:
            entry["first"].append({**place} | ({"what": detail} if detail else {}))

    def merge(self, other: Mapping[str, dict[str, Any]]) -> None:
        """Adds the counts of other files."""
        for kind, entry in other.items():
            total = self.setdefault(kind, {"count": 0, "files": 0, "first": []})
            total["count"] += entry["count"]
            total["files"] += entry["files"]
            total["first"] += entry["first"][: FIRST_PLACES - len(total["first"])]

    def log(self) -> None:
        """Logs one warning per kind of odd input."""
        for kind, entry in self.items():
            count, num_files, first = entry["count"], entry["files"], entry["first"][0]
            files = f"{first['file']} and {num_files - 1} more" if num_files > 1 else first["file"]
            where = f" in {first['file']}" if num_files > 1 else ""
            if "line" in first:
                where += f" at line {first['line']}, byte offset {first['offset']}"
            elif "row" in first:
                where += f" at row {first['row']}"
            where += f" ({first['what']})" if "what" in first else ""
            where = where and f", the first{where}"
            name, handling = KINDS[kind]
            logging.warning("%s: %s: %d%s; %s", files, name, count, where, handling)


# --- bad lines and rows ---


class Units:
    """The lines, rows or characters of one file, or of a part of it.

    Readers set `num_units` to the number of units that they have read; `odd` counts odd input.
    `name` is the singular name of a unit, and `max_bad_share` the maximum fraction of undecodable
    or malformed units.
    """

    def __init__(self, path: str, name: str, max_bad_share: float):
        self.path, self.name, self.odd = path, name, OddInput()
        self._max_bad_share = max_bad_share
        self.num_units = self._num_bad = self._last_bad = 0
        self._first_bad = ""

    def place(self, unit: Any = None) -> dict[str, Any]:
        """Returns the place of a unit for `OddInput.add`; None is the file as a whole.

        The unit is its number, or a `Line`.
        """
        return {"file": self.path} | ({self.name: unit} if unit else {})

    def add_odd(self, kind: str, unit: Any = None, times: int = 1) -> None:
        """Counts odd input of a kind in `KINDS`, by default in the file as a whole."""
        self.odd.add(kind, self.place(unit), times=times)

    def add_bad(self, number: int, problem: str, times: int = 1) -> None:
        """Counts a bad unit, once; or `times` units, from that number on."""
        self._first_bad = self._first_bad or f"{self.path} {self.name} {number}: {problem}"
        self._num_bad += times if number != self._last_bad else 0
        self._last_bad = number
        if not self._max_bad_share:
            self.check_bad_share()

    def check_bad_share(self) -> None:
        """Raises an `InputError` if too many units were bad; called after the last was read."""
        if self._num_bad > self._max_bad_share * self.num_units:
            share = f"more than --max_bad_line_share={self._max_bad_share:g} allows"
            if self._max_bad_share:
                share = f"{self._num_bad} of {self.num_units} {self.name}s are bad, {share}"
            raise InputError(f"{self._first_bad}: {share}")


# --- stored and compressed bytes ---

BLOCK_BYTES = 1 << 18  # Fits in a processor's cache.
# Bounds memory: a kilobyte of .gz or .zst expands to at most 32 MiB.
_STORED_BYTES = 1 << 10
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
    ".zst": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


class Part(NamedTuple):
    """A part of a text file between two line ends; the default is the whole file.

    `start` is the offset of the first byte, and `end` the offset after the last one, or None.
    """

    start: int = 0
    end: int | None = None


WHOLE = Part()


def is_archive(path: str) -> bool:
    """Returns whether the ending of a file name is that of a supported archive, such as .gz."""
    return os.path.splitext(path)[1].lower() in _DECOMPRESSORS


def read_blocks(path: str, file: BinaryIO, part: Part = WHOLE) -> Iterator[bytes]:
    """Yields the decompressed content of a file in blocks."""
    if is_archive(path):
        yield from _decompressed(path, iter(lambda: file.read(_STORED_BYTES), b""))
        return
    position, end = part
    file.seek(position)
    while block := file.read(BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - position)):
        position += len(block)
        yield block


def _decompressed(path: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompresses consecutive archives.

    The stream readers of the libraries are not strict enough: they ignore data after an archive
    (bz2, lzma), ignore NULs after it (gzip), or accept a truncated archive (zstandard).
    """
    archive = None
    for stored in blocks:
        # bz2 and lzma keep input that is not used yet, so the size of their output can be bounded.
        while stored or not getattr(archive, "needs_input", True):
            archive = archive or _DECOMPRESSORS[os.path.splitext(path)[1].lower()]()
            bound = (BLOCK_BYTES,) if hasattr(archive, "needs_input") else ()
            try:
                yield archive.decompress(stored, *bound)
            except (OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                reason = " ".join(str(error).split())
                raise InputError(f"{path}: broken archive: {reason}") from None
            stored = b""
            if archive.eof:
                stored, archive = archive.unused_data, None
    if archive is not None:
        raise InputError(f"{path}: broken archive: truncated before its end marker")


# --- lines ---

MAX_LINE_BYTES = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# The characters that errors="surrogateescape" produces for invalid bytes.
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


def decode(content: bytes, encoding: str = "utf-8") -> tuple[str, int]:
    """Decodes text; returns it with U+FFFD for each undecodable byte, and their number."""
    try:
        return content.decode(encoding), 0
    except UnicodeDecodeError:
        text = content.decode(encoding, "surrogateescape")
    text, times = _ESCAPED_BYTE.subn("\ufffd", text)
    return text, max(times, 1)


class Line(NamedTuple):
    """A line, or a part of an over-long line.

    Attributes:
        number: line number in the part of the file that is read, from 1.
        offset: offset of the first byte in the (decompressed) file.
        content: the bytes without the line end.
        is_partial: whether this is a part of an over-long line.
    """

    number: int
    offset: int
    content: bytes
    is_partial: bool


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
        max_bad_share: float,
        raw: BinaryIO,
        max_line_bytes: int | None = None,
        part: Part = WHOLE,
    ):
        super().__init__(path, "line", max_bad_share)
        self._file, self.part = raw, part
        self._max_line_bytes = max_line_bytes or MAX_LINE_BYTES

    def lines(self) -> Iterator[Line]:
        """Yields the undecoded lines one by one.

        A part of an over-long line that has only white space is skipped, because a blank line
        would end a document.
        """
        number, offset, is_partial = 1, self.part.start, False
        for content, is_end in self._contents():
            if number == 1 and not offset:
                if content.startswith(_UTF16_MARKS):
                    raise InputError(
                        f"{self.path}: starts with the byte order mark of UTF-16; expected UTF-8; "
                        "convert it first, for example with iconv -t utf-8"
                    )
                if content.startswith(BYTE_ORDER_MARK):
                    content, offset = content[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
            self.num_units = number
            if not (is_end or is_partial):
                self.add_odd("long_lines", Line(number, offset, b"", True))
            is_partial |= not is_end
            if not (is_partial and not content.decode(errors="replace").strip()):
                yield Line(number, offset, content, is_partial)
            offset += len(content) + is_end
            if is_end:
                number, is_partial = number + 1, False

    def _contents(self) -> Iterator[tuple[bytes, bool]]:
        """Yields (a line or a part of it, whether the line ends there)."""
        tail = bytearray()  # Extended in place, because a line can have many blocks.
        for block in read_blocks(self.path, self._file, self.part):
            start, *lines = block.split(b"\n")
            tail += start
            if lines:
                lines, tail = [bytes(tail), *lines[:-1]], bytearray(lines[-1])
            for line in lines:
                if len(line) > self._max_line_bytes:
                    *parts, line = self._split(line)
                    yield from ((part, False) for part in parts)
                yield line, True
            if len(tail) > self._max_line_bytes:
                *parts, end = self._split(bytes(tail))
                yield from ((part, False) for part in parts)
                tail = bytearray(end)
        if tail:
            yield bytes(tail), True

    def _split(self, line: bytes) -> list[bytes]:
        """Splits an over-long line: after white space if possible, else between characters."""
        parts, most = [], self._max_line_bytes
        while len(line) > most:
            at = max(line.rfind(b" ", most // 2, most), line.rfind(b"\t", most // 2, most)) + 1
            if not at:
                at = most
                while at > most - 4 and line[at] & 0xC0 == 0x80:  # inside a UTF-8 character
                    at -= 1
            parts.append(line[:at])
            line = line[at:]
        return [*parts, line]

    def decode(self, line: Line) -> str:
        """Decodes a line; undecodable bytes are counted and become U+FFFD."""
        try:
            return line.content.decode()
        except UnicodeDecodeError as error:
            at = error.start
        text, times = decode(line.content)
        byte, place = f"0x{line.content[at]:02x}", self.place(line)
        place["offset"] += at
        self.odd.add("undecodable_bytes", place, byte, times)
        where = f"offset {at} of the line, {place['offset']} of the file"
        self.add_bad(place["line"], f"not UTF-8 (byte {byte} at {where})")
        return text

    def add_malformed(self, line: Line, problem: str) -> None:
        """Counts a malformed line; raises an `InputError` if `max_bad_share` is 0."""
        place = self.place(line)
        self.odd.add("malformed_lines", place, problem)
        self.add_bad(place["line"], f"{problem} (byte offset {place['offset']} of the file)")

    def place(self, line: Any = None) -> dict[str, Any]:
        """Returns the place of a line for `OddInput.add`; None is the start of the file."""
        if line is None:
            return {"file": self.path, "line": 1, "offset": 0}
        number = line.number + self._num_lines_before
        return {"file": self.path, "line": number, "offset": line.offset}

    @functools.cached_property
    def _num_lines_before(self) -> int:
        if not self.part.start:
            return 0
        with open(self.path, "rb") as file:
            blocks = read_blocks(self.path, file, Part(0, self.part.start))
            return sum(block.count(b"\n") for block in blocks)
