"""Assigns documents to shards and to temporary files, and chooses the number of shards.

A bucket is a set of documents, selected by their hash: a shard, or the documents of one temporary
file per process (`spill`). All results depend only on the text and the seed, so they are the same
on every runner.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from data_tools.corpus.archives import is_archive
from keras_bert.common.errors import InputError

DIGEST_BYTES = 16

_TEXT_BYTES_PER_SHARD = 8 << 20
# Segment B of a random pair should be drawn from many other documents.
_DOCUMENTS_PER_SHARD = 32
# Limits for the memory of a worker, with a margin because some shards are larger by chance.
_MAX_TEXT_BYTES_PER_SHARD = 32 << 20
_MAX_SENTENCES_PER_SHARD = 500_000
_MAX_SHARDS = 1 << 16


def document_digest(text: bytes, random_seed: int) -> bytes:
    """Returns a 16-byte hash of a document, given as UTF-8.

    The hash determines the shard of the document, and its position in the shard.
    """
    key = str(random_seed).encode()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES, key=key).digest()


def bucket_of(digest: bytes, num_buckets: int) -> int:
    """Returns the bucket of the document with a `document_digest`, from 0 to num_buckets - 1."""
    return int.from_bytes(digest[:8], "big") % num_buckets


def default_num_buckets(inputs: Iterable[Mapping[str, Any]]) -> int:
    """Chooses the number of temporary files per process by the size of the input files.

    It is a power of two, so that the files can be merged or split evenly into the number of shards
    that `default_num_shards` chooses. `inputs` has {"file": path, "bytes": size} for each file.
    """
    text_bytes = sum(text_bytes_of(entry["file"], entry["bytes"]) for entry in inputs)
    num_buckets = -(-text_bytes // _TEXT_BYTES_PER_SHARD)
    return min(1 << max(num_buckets - 1, 0).bit_length(), _MAX_SHARDS)


def text_bytes_of(path: str, stored_bytes: int) -> int:
    """Estimates the decompressed size of a file that has `stored_bytes` bytes on disk."""
    if path.lower().endswith(".parquet"):
        return stored_bytes * 2  # The usual compression of Parquet, Snappy, halves text.
    return stored_bytes * (4 if is_archive(path) else 1)  # text compresses to about a quarter


def default_num_shards(
    num_buckets: int,
    num_documents: int,
    text_bytes: int,
    num_sentences: int,
    next_sentence: str = "random",
) -> int:
    """Chooses the number of shards, a power of two, by the contents of the corpus.

    The number starts at `num_buckets`, a power of two, and is doubled until each shard fits in the
    memory of a worker. For next_sentence=random, it is then halved until each shard has enough
    documents for random pairs, but only as long as each shard still fits.
    """

    def is_too_much(num_shards: int) -> bool:
        return (
            text_bytes > num_shards * _MAX_TEXT_BYTES_PER_SHARD
            or num_sentences > num_shards * _MAX_SENTENCES_PER_SHARD
        )

    num_shards = num_buckets
    while num_shards < _MAX_SHARDS and is_too_much(num_shards):
        num_shards *= 2
    while (
        next_sentence == "random"
        and num_shards > 1
        and num_documents < num_shards * _DOCUMENTS_PER_SHARD
        and not is_too_much(num_shards // 2)
    ):
        num_shards //= 2
    return num_shards


def check_corpus(
    input_files: list[str],
    num_documents: int,
    longest_document: int,
    next_sentence: str = "random",
) -> None:
    """Raises an `InputError` if no examples can be created from a corpus.

    For next_sentence=random, at least one document must have two sentences; if there is only one
    document, a warning is logged. For the other values, any text is enough: "order" can split a
    sentence, and "none" makes no pairs. `longest_document` is the largest number of sentences in a
    document.
    """
    where = f"{input_files[0]}" + (f" and {len(input_files) - 1} more" if input_files[1:] else "")
    if not num_documents:
        raise InputError(f"--input_file: no text in {where}; expected at least one document")
    if next_sentence != "random":
        return
    if longest_document < 2:
        raise InputError(
            f"--input_file: no document of {where} has two sentences, so there is no next sentence "
            "to predict; expected one sentence per line and blank lines between documents"
        )
    if num_documents == 1:
        logging.warning(
            "%s is a single document, so every random next sentence comes from that same document; "
            "separate documents by blank lines",
            where,
        )


def largest_first(inputs: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    """Returns (index, entry) of all input files, in the order in which workers should read them.

    If a large file were the last one, the other workers would wait for the one that reads it.
    """
    return sorted(enumerate(inputs), key=lambda numbered: -numbered[1]["bytes"])
