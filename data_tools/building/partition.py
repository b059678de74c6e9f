"""Assigns documents to shards and chooses the number of shards.

All results depend only on the text and the seed, so they are the same on every runner.
"""

import hashlib
from collections.abc import Iterable, Mapping
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
    """Returns a 16-byte hash of a UTF-8 text, which determines its shard and its position there."""
    key = str(random_seed).encode()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES, key=key).digest()


def bucket_of(digest: bytes, num_buckets: int) -> int:
    """Returns the bucket of a document with this `document_digest`, from 0 to num_buckets - 1."""
    return int.from_bytes(digest[:8], "big") % num_buckets


def default_num_buckets(inputs: Iterable[Mapping[str, Any]]) -> int:
    """Chooses the number of buckets (temporary files per process) by the size of the input files.

    A power of two, so that `default_num_shards` can merge or split the buckets evenly.
    """
    text_bytes = sum(text_bytes_of(entry["file"], entry["bytes"]) for entry in inputs)
    num_buckets = -(-text_bytes // _TEXT_BYTES_PER_SHARD)
    return min(1 << max(num_buckets - 1, 0).bit_length(), _MAX_SHARDS)


def text_bytes_of(path: str, stored_bytes: int) -> int:
    """Estimates the decompressed size of a file that has `stored_bytes` bytes on disk."""
    return stored_bytes * (4 if is_archive(path) else 1)  # text compresses to about a quarter


def default_num_shards(
    num_buckets: int,
    num_documents: int,
    text_bytes: int,
    num_sentences: int,
    next_sentence: str = "random",
) -> int:
    """Chooses the number of shards, a power of two, by the contents of the corpus.

    It starts at `num_buckets` and is doubled until each shard fits in memory. For
    next_sentence=random, it is halved until each shard has enough documents for random pairs, while
    it still fits.
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

    Any text is enough for next_sentence=order, which can split a sentence, and none, which makes no
    pairs. random needs a document with two sentences; a single document logs a warning.
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
