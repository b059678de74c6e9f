"""Reads the documents of one input file and describes it, in one pass over its bytes."""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from data_tools.corpus.documents import Reading, read_texts
from data_tools.corpus.odd_input import OddInput
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
    """

    def __init__(
        self,
        path: str,
        reading: Reading,
        open_file: Callable[[str], BinaryIO] = open_unbuffered,
        on_read: Callable[[int], None] = lambda num_bytes: None,
    ):
        self._path, self._reading = path, reading
        self._open_file, self._on_read = open_file, on_read
        self._sha256, self._num_bytes, self._odd = hashlib.sha256(), 0, OddInput()
        self._num_documents = self._num_sentences = self._text_bytes = self._longest = 0

    def documents(self) -> Iterator[bytes]:
        """Yields each document as UTF-8 text with one sentence per line; can be called once.

        Raises:
            InputError: see `read_documents`.
        """
        for document in read_texts(self._path, self._reading, self._odd, self._open):
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
            sentences in a document; and odd (`OddInput.to_dict`).
        """
        return {
            "file": self._path,
            "bytes": self._num_bytes,
            "sha256": self._sha256.hexdigest(),
            "documents": self._num_documents,
            "sentences": self._num_sentences,
            "text_bytes": self._text_bytes,
            "longest_document": self._longest,
            "odd": self._odd.to_dict(),
        }

    def _open(self, path: str) -> "_HashedStream":
        return _HashedStream(path, self._open_file(path), self._add)

    def _add(self, data: bytes) -> None:
        self._sha256.update(data)
        self._num_bytes += len(data)
        self._on_read(len(data))


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
                    raise InputError(
                        f"{self._path}: the content changed while it was read; run the same "
                        "command again"
                    )
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
