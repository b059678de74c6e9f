r"""Reads lines of text files, decompresses them, and counts odd input and bad lines.

    stored bytes -> decompressed (.gz, .bz2, .xz, .zst) -> blocks of whole lines -> lines

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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
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

    `bad_units` are those of the file, or the part of it, that was read last (`Units.bad_units`).
    """

    def __init__(self) -> None:
        self.bad_units = (0, 0, "")
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


class Units:
    """The lines, rows or characters of one file, or of a part of it.

    The attribute `odd` counts odd input. Readers set `num_units` to the number of units that they
    have read.

    Args:
        path: the path of the file.
        name: the singular name of a unit.
        max_bad_share: the maximum fraction of undecodable or malformed units.
    """

    def __init__(self, path: str, name: str, max_bad_share: float):
        self.path, self.name, self.odd = path, name, OddInput()
        self._max_bad_share = max_bad_share
        self.num_units = self._num_bad = self._last_bad = 0
        self._first_bad = ""

    def place(self, unit: Any = None) -> dict[str, Any]:
        """Returns the place of a unit for `OddInput.add`; None is the file as a whole."""
        return {"file": self.path} | ({self.name: unit.number} if unit else {})

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

    def bad_units(self) -> tuple[int, int, str]:
        """Returns the numbers of bad units and of all units, and a description of the first one."""
        return self._num_bad, self.num_units, self._first_bad

    def check_bad_share(self) -> None:
        """Raises an `InputError` if too many units were bad; called after the last was read."""
        check_bad_share([self.bad_units()], self._max_bad_share, self.name)


def check_bad_share(parts: Iterable[tuple[int, int, str]], max_bad_share: float, name: str) -> None:
    """Raises an `InputError` if too many units of a file are bad.

    `parts` are the `Units.bad_units` of all parts of the file, and `name` is that of a unit.
    """
    num_bad, num_units, descriptions = zip(*parts, strict=True)
    if sum(num_bad) > max_bad_share * sum(num_units):
        share = f"more than --max_bad_line_share={max_bad_share:g} allows"
        if max_bad_share:
            share = f"{sum(num_bad)} of {sum(num_units)} {name}s are bad, {share}"
        raise InputError(f"{next(filter(None, descriptions))}: {share}")


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
    """Yields the decompressed content of a file in blocks that end at multiples of BLOCK_BYTES."""
    position, content = part.start, bytearray()
    if is_archive(path):
        blocks = _decompressed(path, _stored_blocks(file, part, _STORED_BYTES))
    else:
        blocks = _stored_blocks(file, part, BLOCK_BYTES)
    for block in blocks:
        content += block
        while len(content) >= (size := BLOCK_BYTES - position % BLOCK_BYTES):
            yield bytes(content[:size])
            del content[:size]
            position += size
    if content:
        yield bytes(content)


def _stored_blocks(file: BinaryIO, part: Part, size: int) -> Iterator[bytes]:
    position, end = part
    file.seek(position)
    while block := file.read(size if end is None else min(size, end - position)):
        position += len(block)
        yield block


def _decompressed(path: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Decompresses consecutive archives.

    The stream readers of the libraries are not strict enough: they ignore data after an archive
    (bz2, lzma), ignore NULs after it (gzip), or accept a truncated archive (zstandard).
    """
    new_archive = _DECOMPRESSORS[os.path.splitext(path)[1].lower()]
    archive, num_complete, num_bytes = None, 0, 0

    def broken(problem: str) -> InputError:
        return InputError(f"{path}: broken archive after {num_bytes} bytes of text: {problem}")

    for stored in blocks:
        # bz2 and lzma keep input that is not used yet, so the size of their output can be bounded.
        while stored or not getattr(archive, "needs_input", True):
            is_new, archive = archive is None, archive or new_archive()
            bound = (BLOCK_BYTES,) if hasattr(archive, "needs_input") else ()
            try:
                content = archive.decompress(stored, *bound)
            except (OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
                if is_new and num_complete:
                    raise broken(
                        "found data after the end of the archive that is not another archive"
                    ) from None
                raise broken(" ".join(str(error).split())) from None
            num_bytes += len(content)
            yield content
            stored = b""
            if archive.eof:
                stored, archive = archive.unused_data, None
                num_complete += 1
    if archive is not None:
        raise broken("truncated before its end marker")


# --- lines ---

MAX_LINE_BYTES = 1 << 20  # Not less than BLOCK_BYTES, so that an over-long line spans blocks.
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

    def decode(self, line: Line) -> str:
        """Decodes a line; undecodable bytes are counted and become U+FFFD.

        Raises an `InputError` if the line cannot be decoded and `max_bad_share` is 0.
        """
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
            blocks = _stored_blocks(file, Part(0, self.part.start), BLOCK_BYTES)
            return sum(block.count(b"\n") for block in blocks)

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
        number, offset = 1, self.part.start
        tail, tail_is_partial = bytearray(), False
        for chunk in read_blocks(self.path, self._file, self.part):
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
            self.num_units = number - 1
        if tail:
            self.num_units = number
        if tail and not (tail_is_partial and is_blank(tail)):
            yield Line(number, offset, bytes(tail) + b"\n", tail_is_partial)

    def _check_mark(self, start: bytes) -> None:
        if start.startswith(_UTF16_MARKS):
            raise InputError(
                f"{self.path}: starts with the byte order mark of UTF-16 (0x{start[:2].hex()}); "
                "expected UTF-8; convert it first, for example with iconv -t utf-8"
            )


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
