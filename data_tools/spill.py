"""Reads a corpus, and distributes its documents over temporary files by the hash of their text.

    input files, or parts of them -> documents -> digest -> bucket -> temporary file
    temporary file: entries of digest (16 bytes), length in bytes (uint64, little-endian), text

A hash of the seed and the text assigns each document to a bucket, and each job writes one temporary
file per bucket, so memory does not grow with the corpus. Documents are read back in the order of
their hashes. Therefore, the result depends neither on the order of the documents in the corpus nor
on the number of jobs. The temporary files of a job have a folder of their own, so a job that is
repeated, because its worker seemed to be dead, does no harm.
"""

import hashlib
import os
import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from data_tools.corpus import Reading, divide, read_texts
from data_tools.lines import OddInput, Part, is_archive
from data_tools.settings import Settings
from keras_bert.errors import InputError

SPILLED = "documents-"
_DIGEST_BYTES = 16
_HEAD = struct.Struct(f"<{_DIGEST_BYTES}sQ")
_SPILL_BUFFER_BYTES = 64 << 20
_SPILL_BYTES_PER_BUCKET = 1 << 20
_OBJECT_BYTES = 48  # Python's memory overhead per entry
# Starting a process takes about a second. A running process reads 12 (prose) to 75 MB of text
# (sentences) in that time.
_TEXT_BYTES_PER_WORKER = 32 << 20
_MAX_JOBS = 100
_COUNTS = ("documents", "sentences", "text_bytes")


def document_digest(text: bytes, random_seed: int) -> bytes:
    """Returns a 16-byte hash of a document, given as UTF-8."""
    key = str(random_seed).encode()
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=key).digest()


def bucket_of(digest: bytes, num_buckets: int) -> int:
    """Returns the bucket (or shard) of a `document_digest`, from 0 to num_buckets - 1."""
    return int.from_bytes(digest[:8], "big") % num_buckets


def text_bytes_of(path: str, stored_bytes: int) -> int:
    """Estimates the decompressed size of a file that has `stored_bytes` bytes on disk."""
    if path.lower().endswith(".parquet"):
        return stored_bytes * 2  # The usual compression of Parquet, Snappy, halves text.
    return stored_bytes * (4 if is_archive(path) else 1)  # text compresses to about a quarter


# --- sources ---

Source = tuple[str, Part]  # a path, and the whole file or a part of it


def share_out(input_files: Sequence[str], num_workers: int, reading: Reading) -> list[list[Source]]:
    """Divides files into groups with about the same amount of text, at most one per worker.

    A file with more text than that is divided itself, if its format can be.
    """
    sizes = {path: text_bytes_of(path, os.path.getsize(path)) for path in input_files}
    total = sum(sizes.values())
    count = min(max(num_workers, 1), total // _TEXT_BYTES_PER_WORKER + 1, _MAX_JOBS)
    sources = {}
    for path, size in sizes.items():
        for part in divide(path, max(-(-size * count // max(total, 1)), 1), reading):
            sources[path, part] = (part.end or size) - part.start
    groups: list[list[Source]] = [[] for _ in range(min(count, len(sources)))]
    loads = [0] * len(groups)
    for source in sorted(sources, key=sources.__getitem__, reverse=True):
        least = loads.index(min(loads))
        groups[least].append(source)
        loads[least] += sources[source]
    return groups


# --- writing ---


def spill(
    sources: list[Source], settings: Settings, num_buckets: int, directory: str
) -> tuple[dict[Source, dict[str, Any]], list[str]]:
    """Distributes the documents of files, or parts of them, over files in a new folder.

    Returns:
        {source: counts}: the numbers of documents and sentences, text_bytes (the size of all
        documents in UTF-8), longest_document (the largest number of sentences in a document) and
        odd (an `OddInput`); and the names of the temporary files, `documents-ID/BUCKET`.
    """
    name = SPILLED + uuid.uuid4().hex
    folder = os.path.join(directory, name)
    buffers: dict[int, list[bytes]] = defaultdict(list)
    max_buffered = min(_SPILL_BUFFER_BYTES, num_buckets * _SPILL_BYTES_PER_BUCKET)
    buffered = 0
    counts_of = {}
    try:
        os.mkdir(folder)
        for path, part in sources:
            odd, counts, longest = OddInput(), dict.fromkeys(_COUNTS, 0), 0
            for document in read_texts(path, settings, odd, part):
                text, num_sentences = document.encode(), document.count("\n") + 1
                for key, count in zip(_COUNTS, (1, num_sentences, len(text)), strict=True):
                    counts[key] += count
                longest = max(longest, num_sentences)
                digest = document_digest(text, settings.random_seed)
                entry = _HEAD.pack(digest, len(text)) + text
                buffers[bucket_of(digest, num_buckets)].append(entry)
                buffered += len(entry) + _OBJECT_BYTES
                if buffered > max_buffered:
                    _flush(buffers, folder)
                    buffered = 0
            counts_of[path, part] = counts | {"longest_document": longest, "odd": odd}
        _flush(buffers, folder)
        buckets = sorted(os.listdir(folder))
        for bucket in buckets:
            with open(os.path.join(folder, bucket), "rb") as file:
                os.fsync(file.fileno())  # The plan must not reach the disk before these files.
    except OSError as error:  # A read error is an InputError already.
        raise InputError(f"{directory}: cannot be written ({error.strerror or error})") from None
    return counts_of, [f"{name}/{bucket}" for bucket in buckets]


def _flush(buffers: dict[int, list[bytes]], folder: str) -> None:
    for bucket, entries in buffers.items():
        with open(os.path.join(folder, f"{bucket:05d}"), "ab") as file:
            file.writelines(entries)
    buffers.clear()


def counts_by_file(counts_of: dict[Source, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns {path: counts of the file}, like those of `spill`, from the counts of its parts."""
    by_file: dict[str, dict[str, Any]] = {}
    for path, part in sorted(counts_of):
        counts = counts_of[path, part]
        total = by_file.setdefault(path, counts)
        if total is counts:
            continue
        for name in _COUNTS:
            total[name] += counts[name]
        total["longest_document"] = max(total["longest_document"], counts["longest_document"])
        total["odd"].merge(counts["odd"])
    for total in by_file.values():
        for entry in total["odd"].values():
            entry["files"] = 1
    return by_file


# --- reading back ---


def files_of_shards(names: Iterable[str], num_buckets: int, num_shards: int) -> list[list[str]]:
    """Returns the names of the temporary files that have documents of each shard.

    `num_shards` must be a multiple or a divisor of `num_buckets`. If it is a multiple, several
    shards share a file.
    """
    by_shard = defaultdict(list)
    for name in names:
        by_shard[int(os.path.basename(name)) % num_shards].append(name)
    return [by_shard[shard % num_buckets] for shard in range(num_shards)]


def read_spilled(paths: Iterable[str], shard: int, num_shards: int) -> list[list[bytes]]:
    """Reads the documents of a shard, lists of UTF-8 sentences, in the order of their digests."""
    entries = []
    for path in paths:
        problem = (
            f"{path}: temporary file is missing or truncated; to start again, remove its folder"
        )
        if not os.path.exists(path):
            raise InputError(problem)
        with open(path, "rb") as file:
            while head := file.read(_HEAD.size):
                digest, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", -1)
                text = file.read(max(length, 0))
                if len(text) != length:
                    raise InputError(problem)
                if bucket_of(digest, num_shards) == shard:
                    entries.append((digest, text))
    entries.sort()
    return [text.split(b"\n") for _, text in entries]
