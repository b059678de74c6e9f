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
from dataclasses import dataclass
from typing import Any, BinaryIO

from data_tools import lines
from data_tools.corpus import Reading, format_of, is_divisible, read_texts
from data_tools.formats import starts_document
from data_tools.jobs import Progress
from data_tools.lines import WHOLE, BadUnits, OddInput, Part, is_archive
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
_BLOCK_BYTES = 1 << 20
_COUNTS = ("documents", "sentences", "text_bytes")


def document_digest(text: bytes, random_seed: int) -> bytes:
    """Returns a 16-byte hash of a document, given as UTF-8.

    The hash determines the shard of the document, and its position in the shard.
    """
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


# --- jobs ---

Source = tuple[str, Part]  # a path, and the whole file or a part of it


@dataclass(frozen=True)
class SpillJob:
    """The files, or parts of them, that one process distributes over `num_buckets` files."""

    sources: list[Source]
    reading: Reading
    random_seed: int
    num_buckets: int
    directory: str


def share_out(input_files: Sequence[str], num_workers: int, reading: Reading) -> list[list[Source]]:
    """Divides files into groups with about the same amount of text, at most one per worker.

    A file with more text than that is divided itself, if its format can be.
    """
    sizes = {path: text_bytes_of(path, os.path.getsize(path)) for path in input_files}
    total = sum(sizes.values())
    count = min(max(num_workers, 1), total // _TEXT_BYTES_PER_WORKER + 1, _MAX_JOBS)
    large = [p for p in sizes if sizes[p] * count > total and is_divisible(p, reading)]
    sources = {(path, WHOLE): size for path, size in sizes.items()}
    if count > 1 and large:
        with Progress("dividing", sum(map(sizes.__getitem__, large)), "B") as progress:
            for path in large:
                size = sources.pop((path, WHOLE))
                for part in _divide(path, reading, -(-size * count // total), progress):
                    sources[path, part] = (part.end or size) - part.start
    groups: list[list[Source]] = [[] for _ in range(min(count, len(sources)))]
    loads = [0] * len(groups)
    for source in sorted(sources, key=sources.__getitem__, reverse=True):
        least = loads.index(min(loads))
        groups[least].append(source)
        loads[least] += sources[source]
    return groups


def _divide(path: str, reading: Reading, num_parts: int, progress: Progress) -> list[Part]:
    """Divides a text file between documents into at most `num_parts` parts of about equal size."""
    parts, line = [], 1
    try:
        with open(path, "rb") as file:
            starts = _part_starts(file, os.path.getsize(path), num_parts, reading)
            file.seek(0)
            for start, end in zip(starts, [*starts[1:], None], strict=True):
                parts.append(Part(start, end, line) if len(starts) > 1 else WHOLE)
                while end is not None and (block := file.read(min(_BLOCK_BYTES, end - start))):
                    line += block.count(b"\n")
                    start += len(block)
                    progress.add(len(block))
            progress.add(os.path.getsize(path) - start)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return parts


def _part_starts(file: BinaryIO, size: int, num_parts: int, reading: Reading) -> list[int]:
    """Returns the offsets at which the parts of a file start; the first one is 0."""
    start = iter(
        lambda: file.readline(lines.MAX_LINE_BYTES).removeprefix(lines.BYTE_ORDER_MARK), b""
    )
    first = next(filter(None, map(bytes.strip, start)), b"")
    is_start = starts_document(format_of(file.name, reading), first)
    starts = [0]
    for index in range(1, num_parts):
        offset, end = (size * i // num_parts for i in (index, index + 1))
        file.seek(offset)
        before = b"x", b"x"  # The offset may be inside of a line.
        while offset < end and (line := file.readline(lines.MAX_LINE_BYTES)):
            is_rest = not before[1].endswith(b"\n")
            # The line must be in the same block as the one before, because blank lines are counted
            # within a block.
            blocks = {at // lines.BLOCK_BYTES for at in (offset - 1, offset + len(line) - 1)}
            if not is_rest and len(blocks) == 1 and is_start(*before, line):
                starts.append(offset)
                break
            before = before[1], (b"x" if is_rest else b"") + line
            offset += len(line)
    return starts


# --- writing ---


def spill(job: SpillJob) -> tuple[dict[Source, dict[str, Any]], dict[str, int]]:
    """Writes the documents of one job to temporary files in a new folder.

    Returns:
        {source: counts}: the numbers of documents and sentences, text_bytes (the size of all
        documents in UTF-8), longest_document (the largest number of sentences in a document), odd
        (`OddInput.to_dict`), and bad_lines (`BadUnits`, or None for a whole file); and {name: size
        in bytes} of the temporary files. A name has the form `documents-ID/BUCKET`.

    Raises:
        InputError: if a file cannot be read or written.
    """
    name = SPILLED + uuid.uuid4().hex
    folder = os.path.join(job.directory, name)
    buffers: dict[int, list[bytes]] = defaultdict(list)
    max_buffered = min(_SPILL_BUFFER_BYTES, job.num_buckets * _SPILL_BYTES_PER_BUCKET)
    buffered = 0
    counts_of, sizes = {}, {}
    try:
        os.mkdir(folder)
        for path, part in job.sources:
            odd, counts, longest = OddInput(), dict.fromkeys(_COUNTS, 0), 0
            for document in read_texts(path, job.reading, odd, part):
                text, num_sentences = document.encode(), document.count("\n") + 1
                for key, count in zip(_COUNTS, (1, num_sentences, len(text)), strict=True):
                    counts[key] += count
                longest = max(longest, num_sentences)
                digest = document_digest(text, job.random_seed)
                entry = _HEAD.pack(digest, len(text)) + text
                buffers[bucket_of(digest, job.num_buckets)].append(entry)
                buffered += len(entry) + _OBJECT_BYTES
                if buffered > max_buffered:
                    _flush(buffers, folder)
                    buffered = 0
            counts |= {"longest_document": longest, "odd": odd.to_dict()}
            counts_of[path, part] = counts | {"bad_lines": odd.bad_lines}
        _flush(buffers, folder)
        for bucket in os.listdir(folder):
            with open(os.path.join(folder, bucket), "rb") as file:
                os.fsync(file.fileno())  # The plan must not reach the disk before these files.
                sizes[f"{name}/{bucket}"] = os.fstat(file.fileno()).st_size
    except OSError as error:  # A read error is an InputError already.
        raise InputError(
            f"{job.directory}: cannot be written ({error.strerror or error})"
        ) from None
    return counts_of, sizes


def _flush(buffers: dict[int, list[bytes]], folder: str) -> None:
    for bucket, entries in buffers.items():
        with open(os.path.join(folder, f"{bucket:05d}"), "ab") as file:
            file.writelines(entries)
    buffers.clear()


def counts_of_file(
    path: str, counts_of: dict[Source, dict[str, Any]], max_bad_line_share: float
) -> dict[str, Any]:
    """Returns the counts of a file, like `spill`, from those of its parts.

    Raises:
        InputError: too many lines are bad.
    """
    counts = [counts_of[source] for source in sorted(counts_of) if source[0] == path]
    if (path, WHOLE) in counts_of:
        return counts[0]
    bad = [part["bad_lines"] for part in counts]
    first = next((part.first for part in bad if part.first), "")
    BadUnits(sum(b.num_bad for b in bad), sum(b.num_units for b in bad), first).check(
        max_bad_line_share, "lines"
    )
    odd = OddInput()
    for part in counts:
        odd.merge(part["odd"])
    totals = {name: sum(part[name] for part in counts) for name in _COUNTS}
    if not totals["documents"]:
        odd.add("empty_files", {"file": path, "line": 1, "offset": 0})
    return totals | {
        "longest_document": max(part["longest_document"] for part in counts),
        "odd": {kind: entry | {"files": 1} for kind, entry in odd.to_dict().items()},
    }


# --- reading back ---


def spilled_files(directory: str) -> dict[str, int]:
    """Returns {name: size in bytes} of the temporary files in a folder, which detects damage."""
    sizes = {}
    for folder in os.listdir(directory):
        path = os.path.join(directory, folder)
        if folder.startswith(SPILLED) and os.path.isdir(path):
            with os.scandir(path) as entries:
                sizes |= {f"{folder}/{entry.name}": entry.stat().st_size for entry in entries}
    return sizes


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
    """Reads the documents of a shard from its temporary files, in the order of their digests.

    Returns a list of sentences in UTF-8 for each document.

    Raises:
        InputError: if a file is missing or truncated.
    """
    entries = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                while head := file.read(_HEAD.size):
                    digest, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", -1)
                    text = file.read(max(length, 0))
                    if len(text) != length:
                        raise InputError(
                            f"{path}: truncated file; to start again, remove its folder"
                        )
                    if bucket_of(digest, num_shards) == shard:
                        entries.append((digest, text))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    entries.sort()
    return [text.split(b"\n") for _, text in entries]
