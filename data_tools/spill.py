"""Documents to temporary files and back: the corpus is read once and spread by hash.

In: the corpus. Out: a temporary file a bucket. Every document goes to bucket hash(seed, text), so
memory stays bounded whatever the corpus's size, and comes back in the order of its hash, so that
neither the order of the input files nor a document's place among them matters.

A temporary file is a row of entries: digest (16 bytes), length in bytes (uint64, little-endian),
text (UTF-8, one sentence a line).
"""

import hashlib
import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from absl import logging

from data_tools.documents import is_archive, read_documents
from keras_bert import files
from keras_bert.errors import InputError

_DIGEST_BYTES = 16
_LENGTH = struct.Struct("<Q")
_SPILL_BUFFER_BYTES = 64 << 20
_TEXT_BYTES_A_SHARD = 8 << 20
# A random B should have many other documents to come from.
_DOCUMENTS_A_SHARD = 32


def default_num_buckets(input_files: list[str]) -> int:
    """Chooses how many temporary files to spill to when the user leaves `--num_shards` open.

    Args:
        input_files: the corpus.

    Returns:
        A power of two, so that `default_num_shards` can join them evenly.
    """
    text_bytes = 0
    for path in input_files:
        # Text packs to about a quarter.
        text_bytes += os.path.getsize(path) * (4 if is_archive(path) else 1)
    wanted = -(-text_bytes // _TEXT_BYTES_A_SHARD)
    return 1 << max(wanted - 1, 0).bit_length()


def default_num_shards(num_buckets: int, num_documents: int) -> int:
    """Halves the number of temporary files until a shard has documents enough to pair.

    Args:
        num_buckets: a power of two, from `default_num_buckets`.
        num_documents: documents in the corpus.

    Returns:
        The number of shards, a divisor of `num_buckets`.
    """
    num_shards = num_buckets
    while num_shards > 1 and num_documents < num_shards * _DOCUMENTS_A_SHARD:
        num_shards //= 2
    return num_shards


def spill_documents(
    input_files: list[str], input_format: str, random_seed: int, num_buckets: int, directory: str
) -> Iterator[dict[str, Any]]:
    """Spreads a corpus's documents over temporary files by hash(seed, text).

    Args:
        input_files: the corpus.
        input_format: how documents are read.
        random_seed: part of the hash.
        num_buckets: how many temporary files.
        directory: where they go.

    Yields:
        After each input file: file, bytes, sha256, documents, sentences, longest_document (in
        sentences).

    Raises:
        InputError: for what cannot be read or written.
    """
    buffers: dict[int, list[bytes]] = defaultdict(list)
    buffered = 0
    for path in input_files:
        num_documents = num_sentences = longest = 0
        for document in read_documents(path, input_format):
            text = "\n".join(document).encode()
            digest = document_digest(text, random_seed)
            entry = digest + _LENGTH.pack(len(text)) + text
            buffers[_bucket(digest, num_buckets)].append(entry)
            buffered += len(entry)
            if buffered > _SPILL_BUFFER_BYTES:
                _flush(buffers, directory)
                buffered = 0
            num_documents += 1
            num_sentences += len(document)
            longest = max(longest, len(document))
        yield {
            "file": path,
            "bytes": os.path.getsize(path),
            "sha256": files.sha256(path),
            "documents": num_documents,
            "sentences": num_sentences,
            "longest_document": longest,
        }
    _flush(buffers, directory)


def check_corpus(input_files: list[str], num_documents: int, longest_document: int) -> None:
    """Refuses a corpus that no example can be made of, and warns of one that is a document.

    Args:
        input_files: the corpus.
        num_documents: documents in it.
        longest_document: sentences of the longest.

    Raises:
        InputError: when there is no text, or no document has two sentences.
    """
    where = f"{input_files[0]}" + (f" and {len(input_files) - 1} more" if input_files[1:] else "")
    if not num_documents:
        raise InputError(f"--input_file: no text in {where}")
    if longest_document < 2:
        raise InputError(
            f"--input_file: no document of {where} has two sentences, so there is no next sentence "
            "to predict: expected one sentence a line and blank lines between documents"
        )
    if num_documents == 1:
        logging.warning(
            "%s is one document: every random next sentence comes from that same document. "
            "Put blank lines between documents",
            where,
        )


def read_spilled(directory: str, buckets: Iterable[int]) -> list[list[bytes]]:
    """Reads documents back in their canonical order, the order of their digests.

    Args:
        directory: where `spill_documents` put them.
        buckets: the numbers of the temporary files to read; one that is absent is empty.

    Returns:
        Sentences (UTF-8) of each document.
    """
    entries = []
    for bucket in buckets:
        path = _bucket_path(directory, bucket)
        if not os.path.exists(path):
            continue
        with open(path, "rb") as file:
            content = file.read()
        at = 0
        while at < len(content):
            digest = content[at : at + _DIGEST_BYTES]
            at += _DIGEST_BYTES
            (length,) = _LENGTH.unpack_from(content, at)
            at += _LENGTH.size
            entries.append((digest, content[at : at + length]))
            at += length
    entries.sort()
    return [text.split(b"\n") for _, text in entries]


def document_digest(text: bytes, random_seed: int) -> bytes:
    """Computes the hash that gives a document its shard and its place there.

    Args:
        text: the document, UTF-8.
        random_seed: the key of the hash.

    Returns:
        16 bytes.
    """
    key = str(random_seed).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=key).digest()


def _bucket(digest: bytes, num_buckets: int) -> int:
    return int.from_bytes(digest[:8], "big") % num_buckets


def _bucket_path(directory: str, bucket: int) -> str:
    return os.path.join(directory, f"documents-{bucket:05d}")


def _flush(buffers: dict[int, list[bytes]], directory: str) -> None:
    for bucket, entries in buffers.items():
        path = _bucket_path(directory, bucket)
        try:
            with open(path, "ab") as file:
                file.writelines(entries)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    buffers.clear()
