"""Documents to temporary files and back: the corpus is read once and spread by hash.

In: the corpus. Out: temporary files, one a bucket from every process that reads. Every document
goes to bucket hash(seed, text), so memory stays bounded whatever the corpus's size, and comes back
in the order of its hash, so that neither the order of the input files nor a document's place among
them nor the number of processes matters.

A temporary file is a row of entries: digest (16 bytes), length in bytes (uint64, little-endian),
text (UTF-8, one sentence a line).
"""

import hashlib
import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from absl import logging

from data_tools.archives import is_archive
from data_tools.documents import Reading, read_texts
from data_tools.odd_input import OddInput
from data_tools.progress import Meter, Progress, watched
from data_tools.runners import run_local
from keras_bert.errors import InputError

_DIGEST_BYTES = 16
_LENGTH = struct.Struct("<Q")
_SPILL_BUFFER_BYTES = 64 << 20
_SPILL_BYTES_A_BUCKET = 1 << 20
_OBJECT_BYTES = 48  # what Python adds to an entry
_READ_BYTES = 1 << 20
# A process takes about a second to start, in which another one reads more than this.
_TEXT_BYTES_A_WORKER = 64 << 20
_MAX_GROUPS = 100
_TEXT_BYTES_A_SHARD = 8 << 20
# A random B should have many other documents to come from.
_DOCUMENTS_A_SHARD = 32


def default_num_buckets(inputs: Iterable[Mapping[str, Any]]) -> int:
    """Chooses how many temporary files to spill to when the user leaves `--num_shards` open.

    Args:
        inputs: file and bytes of each file of the corpus.

    Returns:
        A power of two, so that `default_num_shards` can join them evenly.
    """
    text_bytes = sum(_text_bytes(entry["file"], entry["bytes"]) for entry in inputs)
    wanted = -(-text_bytes // _TEXT_BYTES_A_SHARD)
    return 1 << max(wanted - 1, 0).bit_length()


def _text_bytes(path: str, stored_bytes: int) -> int:
    return stored_bytes * (4 if is_archive(path) else 1)  # text packs to about a quarter


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
    input_files: list[str],
    reading: Reading,
    random_seed: int,
    num_buckets: int,
    directory: str,
    num_workers: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Spreads a corpus's documents over temporary files by hash(seed, text).

    Args:
        input_files: the corpus.
        reading: how documents are read.
        random_seed: part of the hash.
        num_buckets: how many temporary files, times the groups in which they are written.
        directory: where they go.
        num_workers: local processes.
        progress: counts the bytes read.

    Returns:
        Of each input file: file, bytes, sha256, documents, sentences, longest_document (in
        sentences), odd (`OddInput.to_dict`).

    Raises:
        InputError: for what cannot be read or written.
    """
    groups = _groups(input_files, num_workers)
    jobs = [
        SpillJob(number, group, reading, random_seed, num_buckets, directory)
        for number, group in enumerate(groups)
    ]
    entries: dict[str, dict[str, Any]] = {}
    with watched([_meter_path(job) for job in jobs], progress):
        for group_entries in run_local(spill_group, jobs, num_workers):
            entries |= {entry["file"]: entry for entry in group_entries}
    odd = OddInput()
    for path in input_files:
        odd.merge(entries[path]["odd"])
    odd.log()
    return [entries[path] for path in input_files]


@dataclass(frozen=True)
class SpillJob:
    """Input files that one process reads, and where their documents go.

    Attributes:
        number: of the group of files, part of the temporary files' names.
        input_files: the files.
        reading: how documents are read.
        random_seed: part of the hash.
        num_buckets: how many temporary files.
        directory: where they go.
    """

    number: int
    input_files: list[str]
    reading: Reading
    random_seed: int
    num_buckets: int
    directory: str


def spill_group(job: SpillJob) -> list[dict[str, Any]]:
    """Reads a group of files and spreads their documents.

    Args:
        job: the files.

    Returns:
        An entry a file, as of `spill_documents`.

    Raises:
        InputError: for what cannot be read or written.
    """
    try:
        with Meter(_meter_path(job)) as meter:
            return _spill(job, meter)
    except OSError as error:  # those of reading are InputErrors already
        raise InputError(
            f"{job.directory}: cannot be written ({error.strerror or error})"
        ) from None


def _spill(job: SpillJob, meter: Meter) -> list[dict[str, Any]]:
    buffers: dict[int, list[bytes]] = defaultdict(list)
    most = min(_SPILL_BUFFER_BYTES, job.num_buckets * _SPILL_BYTES_A_BUCKET)
    buffered = 0
    entries = []
    for path in job.input_files:
        source = _Source(path, meter)
        odd = OddInput()
        num_documents = num_sentences = longest = 0
        for document in read_texts(path, job.reading, odd, source.open):
            text = document.encode()
            digest = document_digest(text, job.random_seed)
            entry = digest + _LENGTH.pack(len(text)) + text
            buffers[bucket_of(digest, job.num_buckets)].append(entry)
            buffered += len(entry) + _OBJECT_BYTES
            if buffered > most:
                _flush(buffers, job)
                buffered = 0
            sentences = document.count("\n") + 1
            num_documents += 1
            num_sentences += sentences
            longest = max(longest, sentences)
        entries.append(
            {
                "file": path,
                "bytes": source.num_bytes,
                "sha256": source.sha256.hexdigest(),
                "documents": num_documents,
                "sentences": num_sentences,
                "longest_document": longest,
                "odd": odd.to_dict(),
            }
        )
    _flush(buffers, job)
    return entries


class _Source:
    """A file that is hashed and counted as it is read.

    Args:
        path: the file.
        meter: counts its bytes.
    """

    def __init__(self, path: str, meter: Meter):
        self._path, self._meter = path, meter
        self.sha256, self.num_bytes = hashlib.sha256(), 0

    def open(self, path: str) -> "_Source":
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        return self

    def __enter__(self) -> "_Source":
        return self

    def __exit__(self, error_type: type | None, *_: object) -> None:
        with self._file:
            while error_type is None and self.read(_READ_BYTES):
                pass  # what a decompressor left unread belongs to the file too

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        self.num_bytes += len(data)
        self._meter.add(len(data))
        return data


def _groups(input_files: list[str], num_workers: int) -> list[list[str]]:
    """Shares files out to workers, about the same amount of text to each."""
    sizes = {path: _text_bytes(path, os.path.getsize(path)) for path in input_files}
    useful = sum(sizes.values()) // _TEXT_BYTES_A_WORKER + 1
    groups: list[list[str]] = [
        [] for _ in range(min(max(num_workers, 1), useful, len(input_files), _MAX_GROUPS))
    ]
    loads = [0] * len(groups)
    for path in sorted(input_files, key=sizes.__getitem__, reverse=True):
        least = loads.index(min(loads))
        groups[least].append(path)
        loads[least] += sizes[path]
    return groups


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


def read_spilled(directory: str, buckets: Iterable[int]) -> list[list[bytes]]:
    """Reads documents back in their canonical order, the order of their digests.

    Args:
        directory: where `spill_documents` put them.
        buckets: the numbers of the temporary files to read; one that is absent is empty.

    Returns:
        Sentences (UTF-8) of each document.
    """
    paths = [_bucket_path(directory, b, group) for b in buckets for group in range(_MAX_GROUPS)]
    entries = []
    for path in filter(os.path.exists, paths):
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


def bucket_of(digest: bytes, num_buckets: int) -> int:
    """Gives a document its bucket.

    Args:
        digest: the document's, from `document_digest`.
        num_buckets: how many there are.

    Returns:
        From 0 to num_buckets - 1.
    """
    return int.from_bytes(digest[:8], "big") % num_buckets


def _bucket_path(directory: str, bucket: int, group: int) -> str:
    return os.path.join(directory, f"documents-{bucket:05d}-{group:02d}")


def _meter_path(job: SpillJob) -> str:
    return os.path.join(job.directory, f"reading-{job.number:02d}")


def _flush(buffers: dict[int, list[bytes]], job: SpillJob) -> None:
    for bucket, entries in buffers.items():
        with open(_bucket_path(job.directory, bucket, job.number), "ab") as file:
            file.writelines(entries)
    buffers.clear()
