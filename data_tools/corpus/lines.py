r"""Reads the lines of a UTF-8 text file, one by one or in blocks of 256 KiB.

Only `\n` and `\r\n` end a line, so a stray U+2028 or vertical tab inside a sentence does not split
it. A byte order mark is dropped. Odd input is counted and repaired: an over-long line is split, an
undecodable byte becomes U+FFFD. A file with too many bad lines is rejected, because it is probably
not UTF-8 text.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from data_tools.corpus.archives import BrokenArchiveError, decompressed
from data_tools.corpus.units import Units
from keras_bert.common.errors import InputError

MAX_LINE_BYTES = 1 << 20

# Fits in a processor's cache. Not more than MAX_LINE_BYTES, so an over-long line spans blocks.
BLOCK_BYTES = 1 << 18
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
# The characters that errors="surrogateescape" produces for invalid bytes.
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


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
    """The lines of one file, or of a part of it, which can be read once.

    Lines with more than `max_line_bytes` bytes are split. `max_bad_line_share` is the maximum
    fraction of undecodable or malformed lines. The attribute `odd` counts odd input.
    """

    def __init__(
        self,
        path: str,
        max_bad_line_share: float,
        open_file: Callable[[str], BinaryIO],
        max_line_bytes: int = MAX_LINE_BYTES,
        part: Part = WHOLE,
    ):
        super().__init__(path, max_bad_line_share)
        self._open_file, self._max_line_bytes, self.part = open_file, max_line_bytes, part

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
        text = line.content.decode(encoding, "surrogateescape")
        text, times = _ESCAPED_BYTE.subn("\ufffd", text)
        byte = f"0x{line.content[at]:02x}"
        place = {"file": self.path, "line": line.number, "offset": line.offset + at}
        self.odd.add("undecodable_bytes", place, byte, max(times, 1))
        name = "UTF-8" if encoding == "utf-8" else encoding
        self._add_bad(
            line.number,
            f"not {name} (byte {byte} at offset {at} of the line, {line.offset + at} of the file)",
        )
        return text

    def place(self, line: Line | None = None) -> dict[str, Any]:
        """Returns the place of a line for `OddInput.add`; None is the start of the file."""
        number, offset = (line.number, line.offset) if line else (1, 0)
        return {"file": self.path, "line": number, "offset": offset}

    def add_malformed(self, line: Line, problem: str) -> None:
        """Counts a malformed line; raises an `InputError` if `max_bad_line_share` is 0."""
        self.odd.add("malformed_lines", self.place(line), problem)
        self._add_bad(line.number, f"{problem} (byte offset {line.offset} of the file)")

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
            self._num_units = number - first_line
        if tail:
            self._num_units = number - first_line + 1
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
        done, end = self.part.start, self.part.end
        try:
            with self._open_file(self.path) as raw:
                file = decompressed(self.path, raw)
                if done:
                    file.seek(done)
                while True:
                    size = BLOCK_BYTES - done % BLOCK_BYTES
                    size = size if end is None else min(size, end - done)
                    chunk = b""
                    # A read may return fewer bytes than requested before the end of the file.
                    while len(chunk) < size and (more := file.read(size - len(chunk))):
                        chunk += more
                        done += len(more)
                    if not chunk:
                        return
                    yield chunk
        except BrokenArchiveError as error:
            raise InputError(
                f"{self.path}: broken archive after {done} bytes of text: {error}"
            ) from None
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None


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
