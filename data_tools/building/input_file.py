"""Reads the documents of one input file and describes it, in one pass over its bytes."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from data_tools.corpus.documents import Reading, read_texts
from data_tools.corpus.odd_input import OddInput


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
        return _HashedStream(self._open_file(path), self._add)

    def _add(self, data: bytes) -> None:
        self._sha256.update(data)
        self._num_bytes += len(data)
        self._on_read(len(data))


class _HashedStream:
    """A binary stream that calls `on_read` with all bytes that are read from it."""

    def __init__(self, stream: BinaryIO, on_read: Callable[[bytes], None]):
        self._stream, self._on_read = stream, on_read

    def __enter__(self) -> "_HashedStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._on_read(data)
        return data
