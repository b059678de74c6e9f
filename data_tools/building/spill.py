"""Distributes the documents of a corpus over temporary files by hash, and reads them back.

    temporary file: entries of digest (16 bytes), length in bytes (uint64, little-endian), text

A hash of the seed and the text assigns each document to a bucket, and each process writes one
temporary file per bucket, so memory does not grow with the corpus. Documents are read back in the
order of their hashes. Therefore, the result depends neither on the order of the documents in the
corpus nor on the number of processes.
"""

import os
import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from data_tools.building.input_file import DividedFile, InputFile
from data_tools.building.partition import (
    DIGEST_BYTES,
    bucket_of,
    document_digest,
    text_bytes_of,
)
from data_tools.building.runners import run_local
from data_tools.corpus.documents import Reading, is_divisible
from data_tools.corpus.lines import WHOLE, Part
from data_tools.corpus.odd_input import OddInput
from data_tools.progress import Meter, Progress, watched
from keras_bert.common.errors import InputError

_SPILLED = "documents-"
_HEAD = struct.Struct(f"<{DIGEST_BYTES}sQ")
_SPILL_BUFFER_BYTES = 64 << 20
_SPILL_BYTES_PER_BUCKET = 1 << 20
_OBJECT_BYTES = 48  # Python's memory overhead per entry
# Starting a process takes about a second. A running process reads 12 (prose) to 75 MB of text
# (sentences) in that time.
_TEXT_BYTES_PER_WORKER = 32 << 20
_MAX_GROUPS = 100


@dataclass(frozen=True)
class Spill:
    """The temporary files of a corpus: `num_buckets` for each process, in `directory`."""

    reading: Reading
    random_seed: int
    num_buckets: int
    directory: str


def spill_documents(
    input_files: list[str],
    spill: Spill,
    num_workers: int,
    progress: Progress,
    log_odd_input: bool = True,
) -> list[dict[str, Any]]:
    """Distributes the documents of a corpus over temporary files.

    Returns:
        The result of `InputFile.entry` for each input file.

    Raises:
        InputError: if a file cannot be read or written.
    """
    groups, divided = _groups(input_files, num_workers, spill.reading)
    jobs = [SpillJob(number, group, spill) for number, group in enumerate(groups)]
    of_parts: dict[tuple[str, Part], dict[str, Any]] = {}
    with watched([_meter_path(job) for job in jobs], progress):
        for group_entries in run_local(spill_group, jobs, num_workers):
            of_parts |= group_entries
    entries = {path: entry for (path, part), entry in of_parts.items() if part == WHOLE}
    for file in divided:
        of_file = [of_parts[file.path, part] for part in file.parts]
        entries[file.path] = file.entry(of_file, spill.reading)
    if log_odd_input:
        odd = OddInput()
        for path in input_files:
            odd.merge(entries[path]["odd"])
        odd.log()
    return [entries[path] for path in input_files]


@dataclass(frozen=True)
class SpillJob:
    """The input files, or parts of them, that one process distributes, and its index."""

    number: int
    input_files: list[tuple[str, Part]]
    spill: Spill


def spill_group(job: SpillJob) -> dict[tuple[str, Part], dict[str, Any]]:
    """Writes the documents of one job to the temporary files of their shards.

    Returns `InputFile.entry` for each of its files or parts.
    """
    try:
        with Meter(_meter_path(job)) as meter:
            return _spill(job, meter)
    except OSError as error:  # A read error is an InputError already.
        raise InputError(
            f"{job.spill.directory}: cannot be written ({error.strerror or error})"
        ) from None


def _spill(job: SpillJob, meter: Meter) -> dict[tuple[str, Part], dict[str, Any]]:
    buffers: dict[int, list[bytes]] = defaultdict(list)
    max_buffered = min(_SPILL_BUFFER_BYTES, job.spill.num_buckets * _SPILL_BYTES_PER_BUCKET)
    buffered = 0
    entries = {}
    for path, part in job.input_files:
        source = InputFile(path, job.spill.reading, on_read=meter.add, part=part)
        for text in source.documents():
            digest = document_digest(text, job.spill.random_seed)
            entry = _HEAD.pack(digest, len(text)) + text
            buffers[bucket_of(digest, job.spill.num_buckets)].append(entry)
            buffered += len(entry) + _OBJECT_BYTES
            if buffered > max_buffered:
                _flush(buffers, job)
                buffered = 0
        entries[path, part] = source.entry()
    _flush(buffers, job)
    for path in _all_spilled(job.spill.directory, range(job.spill.num_buckets), [job.number]):
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # The plan must not reach the disk before these files.
    return entries


def _groups(
    input_files: list[str], num_workers: int, reading: Reading
) -> tuple[list[list[tuple[str, Part]]], list[DividedFile]]:
    """Divides files into groups with about the same amount of text, at most one per worker.

    A file with more text than that is divided itself, if its format can be. Returns the groups of
    files, or of their parts, and the divided files.
    """
    sizes = {path: text_bytes_of(path, os.path.getsize(path)) for path in input_files}
    total = sum(sizes.values())
    count = min(max(num_workers, 1), total // _TEXT_BYTES_PER_WORKER + 1, _MAX_GROUPS)
    large = [p for p in sizes if sizes[p] * count > total and is_divisible(p, reading)]
    divided = []
    if count > 1 and large:
        with Progress("dividing", sum(map(sizes.__getitem__, large)), "B") as progress:
            for path in large:
                num_parts = -(-sizes[path] * count // total)
                file = DividedFile.of(path, reading, num_parts, progress.add)
                divided += [file] if len(file.parts) > 1 else []
    sources = {(path, WHOLE): size for path, size in sizes.items()}
    for file in divided:
        del sources[file.path, WHOLE]
        size = sizes[file.path]
        sources |= {(file.path, part): (part.end or size) - part.start for part in file.parts}
    groups: list[list[tuple[str, Part]]] = [[] for _ in range(min(count, len(sources)))]
    loads = [0] * len(groups)
    for source in sorted(sources, key=sources.__getitem__, reverse=True):
        least = loads.index(min(loads))
        groups[least].append(source)
        loads[least] += sources[source]
    return groups, divided


def spilled_files(directory: str) -> dict[str, int]:
    """Returns {name: size in bytes} of the temporary files in a folder, which detects damage."""
    with os.scandir(directory) as found:
        sizes = {e.name: e.stat().st_size for e in found if e.name.startswith(_SPILLED)}
    return dict(sorted(sizes.items()))


def read_spilled(
    directory: str, num_buckets: int, shard: int, num_shards: int
) -> list[list[bytes]]:
    """Reads the documents of a shard from the temporary files, in the order of their digests.

    `num_shards` must be a multiple or a divisor of `num_buckets`. Returns a list of sentences in
    UTF-8 for each document.

    Raises:
        InputError: if a file is truncated.
    """
    buckets = range(shard % num_buckets, num_buckets, num_shards)
    entries = []
    for path in _all_spilled(directory, buckets, range(_MAX_GROUPS)):
        with open(path, "rb") as file:
            while head := file.read(_HEAD.size):
                digest, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", -1)
                text = file.read(max(length, 0))
                if len(text) != length:
                    raise InputError(f"{path}: truncated file; to start again, remove its folder")
                if bucket_of(digest, num_shards) == shard:
                    entries.append((digest, text))
    entries.sort()
    return [text.split(b"\n") for _, text in entries]


def _bucket_path(directory: str, bucket: int, group: int) -> str:
    return os.path.join(directory, f"{_SPILLED}{bucket:05d}-{group:02d}")


def _all_spilled(directory: str, buckets: Iterable[int], groups: Iterable[int]) -> list[str]:
    paths = [_bucket_path(directory, bucket, group) for bucket in buckets for group in groups]
    return list(filter(os.path.exists, paths))


def _meter_path(job: SpillJob) -> str:
    return os.path.join(job.spill.directory, f"reading-{job.number:02d}")


def _flush(buffers: dict[int, list[bytes]], job: SpillJob) -> None:
    for bucket, entries in buffers.items():
        with open(_bucket_path(job.spill.directory, bucket, job.number), "ab") as file:
            file.writelines(entries)
    buffers.clear()
