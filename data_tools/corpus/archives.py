"""Decompresses files as streams: .gz, .bz2, .xz and .zst, one or more archives in a row."""

import bz2
import lzma
import os
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

import zstandard


class BrokenArchiveError(Exception):
    """Raised for a file that is truncated, or contains anything but archives of its format."""


def is_archive(path: str) -> bool:
    """Returns whether the ending of a file name is that of a supported archive, such as .gz."""
    return os.path.splitext(path)[1].lower() in _FORMATS


def decompressed(path: str, raw: BinaryIO) -> "BinaryIO | _Archive":
    """Returns the stream `raw` of the file at `path`, decompressed if the file is an archive."""
    form = _FORMATS.get(os.path.splitext(path)[1].lower())
    return _Archive(raw, *form) if form else raw


class _Archive:
    """Reads consecutive archives until the stream ends.

    The stream readers of the libraries are not strict enough: they ignore data after an archive
    (bz2, lzma), ignore NULs after it (gzip), or accept a truncated archive (zstandard). At most
    `stored_bytes` bytes of `raw` are decompressed at a time.
    """

    def __init__(self, raw: BinaryIO, new_archive: Callable[[], Any], stored_bytes: int):
        self._raw, self._new_archive, self._stored_bytes = raw, new_archive, stored_bytes
        self._archive, self._num_complete = None, 0
        self._stored, self._content = b"", memoryview(b"")

    def read(self, size: int) -> bytes:
        """Reads at most `size` bytes of decompressed content; returns b"" at the end."""
        while not self._content:
            # bz2 and lzma keep unused input, which bounds the size of their output.
            if not self._stored and getattr(self._archive, "needs_input", True):
                self._stored = self._raw.read(self._stored_bytes)
                if not self._stored:
                    if self._archive is not None:
                        raise BrokenArchiveError("truncated before its end marker")
                    return b""
            self._decompress(size)
        content, self._content = self._content[:size], self._content[size:]
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
                raise BrokenArchiveError(
                    "found data after the end of the archive that is not another archive"
                ) from None
            raise BrokenArchiveError(" ".join(str(error).split())) from None
        self._content, self._stored = memoryview(content), b""
        if self._archive.eof:
            self._stored, self._archive = self._archive.unused_data, None
            self._num_complete += 1


# The second value is the number of stored bytes that are decompressed at a time. It bounds memory
# where the library does not: a byte of gzip expands to at most a thousand bytes of text, and a
# kilobyte of zstandard to at most 32 MiB.
_FORMATS: dict[str, tuple[Callable[[], Any], int]] = {
    ".gz": (lambda: zlib.decompressobj(wbits=31), 1 << 14),
    ".bz2": (bz2.BZ2Decompressor, 1 << 16),
    ".xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), 1 << 16),
    ".zst": (lambda: zstandard.ZstdDecompressor().decompressobj(), 1 << 10),
}
