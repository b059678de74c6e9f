"""Compressed files: told by their names, read as streams.

In: a path and the stream of its bytes as they are stored. Out: the stream of its content. An
archive may be several, one behind the other, and nothing else: whatever follows is no archive, or
is cut, raises `BrokenArchiveError`.
"""

import bz2
import lzma
import os
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

import zstandard


class BrokenArchiveError(Exception):
    """A file that is not the archive that its name says, or not a whole one."""


def is_archive(path: str) -> bool:
    """Tells by its name whether a file is compressed.

    Args:
        path: the file.

    Returns:
        True for .gz, .bz2, .xz and .zst.
    """
    return os.path.splitext(path)[1].lower() in _FORMATS


def decompressed(path: str, raw: BinaryIO) -> "BinaryIO | _Archive":
    """Decompresses a stream if its file's name says that it is compressed.

    Args:
        path: the file.
        raw: its bytes.

    Returns:
        The stream of its content; `raw` itself for a plain file.
    """
    form = _FORMATS.get(os.path.splitext(path)[1].lower())
    return _Archive(raw, *form) if form else raw


class _Archive:
    """Reads one archive after the other until the stream ends.

    The streams of the libraries pass over what follows an archive (bz2, lzma), over NULs there
    (gzip), or take a cut archive for whole (zstandard).

    Args:
        raw: the bytes as they are stored.
        new_archive: makes a decompressor of one archive.
        stored_bytes: how much of `raw` is decompressed at a time.
    """

    def __init__(self, raw: BinaryIO, new_archive: Callable[[], Any], stored_bytes: int):
        self._raw, self._new_archive, self._stored_bytes = raw, new_archive, stored_bytes
        self._archive, self._num_whole = None, 0
        self._stored, self._content = b"", memoryview(b"")

    def read(self, size: int) -> bytes:
        """Reads on.

        Args:
            size: most bytes wanted.

        Returns:
            Some of the content; nothing at its end.

        Raises:
            BrokenArchiveError: for anything but whole archives.
        """
        while not self._content:
            # bz2 and lzma keep what they have not used, so that their output can be bounded.
            if not self._stored and getattr(self._archive, "needs_input", True):
                self._stored = self._raw.read(self._stored_bytes)
                if not self._stored:
                    if self._archive is not None:
                        raise BrokenArchiveError("it ends before its end mark")
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
            if is_new and self._num_whole:
                raise BrokenArchiveError("what follows its end is no archive") from None
            raise BrokenArchiveError(" ".join(str(error).split())) from None
        self._content, self._stored = memoryview(content), b""
        if self._archive.eof:
            self._stored, self._archive = self._archive.unused_data, None
            self._num_whole += 1


# How much is decompressed at a time bounds memory where the library does not: a stored byte of
# gzip holds a thousand bytes of text at most, a kilobyte of zstandard 32 MiB.
_FORMATS: dict[str, tuple[Callable[[], Any], int]] = {
    ".gz": (lambda: zlib.decompressobj(wbits=31), 1 << 14),
    ".bz2": (bz2.BZ2Decompressor, 1 << 16),
    ".xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), 1 << 16),
    ".zst": (lambda: zstandard.ZstdDecompressor().decompressobj(), 1 << 10),
}
