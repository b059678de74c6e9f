"""How a corpus is shared out: which shard a document goes to, and how many shards there are.

In: a document's text, or what a corpus turned out to be. Out: its digest and its bucket; a number
of temporary files and of shards. All are functions of the text and the seed, so that every runner
comes to the same.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging

from data_tools.corpus.archives import is_archive
from keras_bert.common.errors import InputError

DIGEST_BYTES = 16

_TEXT_BYTES_A_SHARD = 8 << 20
# A random B should have many other documents to come from.
_DOCUMENTS_A_SHARD = 32
# What a worker may hold in its memory, with room for the chance that makes some shards larger.
_MOST_TEXT_BYTES_A_SHARD = 32 << 20
_MOST_SENTENCES_A_SHARD = 500_000
_MOST_SHARDS = 1 << 16


def document_digest(text: bytes, random_seed: int) -> bytes:
    """Computes the hash that gives a document its shard and its place there.

    Args:
        text: the document, UTF-8.
        random_seed: the key of the hash.

    Returns:
        16 bytes.
    """
    key = str(random_seed).encode()
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES, key=key).digest()


def bucket_of(digest: bytes, num_buckets: int) -> int:
    """Gives a document its bucket.

    Args:
        digest: the document's, from `document_digest`.
        num_buckets: how many there are.

    Returns:
        From 0 to num_buckets - 1.
    """
    return int.from_bytes(digest[:8], "big") % num_buckets


def default_num_buckets(inputs: Iterable[Mapping[str, Any]]) -> int:
    """Chooses how many temporary files to spill to when the user leaves `--num_shards` open.

    Args:
        inputs: file and bytes of each file of the corpus.

    Returns:
        A power of two, so that `default_num_shards` can join or part them evenly.
    """
    text_bytes = sum(text_bytes_of(entry["file"], entry["bytes"]) for entry in inputs)
    wanted = -(-text_bytes // _TEXT_BYTES_A_SHARD)
    return min(1 << max(wanted - 1, 0).bit_length(), _MOST_SHARDS)


def text_bytes_of(path: str, stored_bytes: int) -> int:
    """Estimates the text in a file.

    Args:
        path: the file.
        stored_bytes: its size.

    Returns:
        Bytes, once decompressed.
    """
    return stored_bytes * (4 if is_archive(path) else 1)  # text packs to about a quarter


def default_num_shards(
    num_buckets: int,
    num_documents: int,
    text_bytes: int,
    num_sentences: int,
    next_sentence: str = "random",
) -> int:
    """Chooses the number of shards by what a corpus turned out to be.

    Args:
        num_buckets: a power of two, from `default_num_buckets`.
        num_documents: documents in the corpus.
        text_bytes: bytes of all documents.
        num_sentences: sentences of all documents.
        next_sentence: random, which alone pairs documents.

    Returns:
        A power of two: `num_buckets`; doubled until a shard has a bearable amount of text and
        sentences; or halved until it has documents enough to pair, as far as it stays bearable.
    """

    def is_too_much(num_shards: int) -> bool:
        return (
            text_bytes > num_shards * _MOST_TEXT_BYTES_A_SHARD
            or num_sentences > num_shards * _MOST_SENTENCES_A_SHARD
        )

    num_shards = num_buckets
    while num_shards < _MOST_SHARDS and is_too_much(num_shards):
        num_shards *= 2
    while (
        next_sentence == "random"
        and num_shards > 1
        and num_documents < num_shards * _DOCUMENTS_A_SHARD
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
    """Refuses a corpus that no example can be made of, and warns of one that is a document.

    Args:
        input_files: the corpus.
        num_documents: documents in it.
        longest_document: sentences of the longest.
        next_sentence: random, which alone needs two sentences and several documents; order cuts
            inside a sentence where it must, and none has no pairs.

    Raises:
        InputError: when there is no text, or no document has two sentences to pair.
    """
    where = f"{input_files[0]}" + (f" and {len(input_files) - 1} more" if input_files[1:] else "")
    if not num_documents:
        raise InputError(f"--input_file: no text in {where}")
    if next_sentence != "random":
        return
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
