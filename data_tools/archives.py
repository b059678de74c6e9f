"""Compressed files: told by their names, read as streams.

In: a path and the stream of its bytes as they are stored. Out: the stream of its content. A broken
or cut archive raises one of `BROKEN_ARCHIVE`, or an OSError without a number (bz2).
"""

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from typing import BinaryIO

import zstandard

BROKEN_ARCHIVE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zstandard.ZstdError)

# A kilobyte of zstandard holds 32 MiB of text at most.
_ZSTD_BYTES = 1 << 10


def is_archive(path: str) -> bool:
    """Tells by its name whether a file is compressed.

    Args:
        path: the file.

    Returns:
        True for .gz, .bz2, .xz and .zst.
    """
    return os.path.splitext(path)[1].lower() in _OPENERS


def decompressed(path: str, raw: BinaryIO) -> BinaryIO:
    """Decompresses a stream if its file's name says that it is compressed.

    Args:
        path: the file.
        raw: its bytes.

    Returns:
        The stream of its content; `raw` itself for a plain file.
    """
    opener = _OPENERS.get(os.path.splitext(path)[1].lower())
    return opener(raw) if opener else raw


class _ZstdFile(io.RawIOBase):
    """Reads one or more zstandard frames; the library's own stream takes a cut one for whole."""

    def __init__(self, raw: BinaryIO):
        self._raw, self._frame, self._input, self._content = raw, None, b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        while not self._content:
            self._input = self._input or self._raw.read(_ZSTD_BYTES)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("compressed file ended before the end of its last frame")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._content = memoryview(self._frame.decompress(self._input))
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._content))
        buffer[:size] = self._content[:size]
        self._content = self._content[size:]
        return size


_OPENERS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _ZstdFile,
}
