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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from data_tools.building.partition import (
    DIGEST_BYTES,
    bucket_of,
    document_digest,
    text_bytes_of,
)
from data_tools.building.runners import run_local
from data_tools.corpus.documents import Reading, read_texts
from data_tools.corpus.odd_input import OddInput
from data_tools.progress import Meter, Progress, watched
from keras_bert.common.errors import InputError

_SPILLED = "documents-"
_HEAD = struct.Struct(f"<{DIGEST_BYTES}sQ")
_SPILL_BUFFER_BYTES = 64 << 20
_SPILL_BYTES_A_BUCKET = 1 << 20
_OBJECT_BYTES = 48  # what Python adds to an entry
# A process takes about a second to start, in which another one reads more than this.
_TEXT_BYTES_A_WORKER = 64 << 20
_MAX_GROUPS = 100


@dataclass(frozen=True)
class Spill:
    """The temporary files that documents are spread over.

    Attributes:
        reading: how documents are read.
        random_seed: part of the hash.
        num_buckets: the number of temporary files of each process.
        directory: the folder of the temporary files.
    """

    reading: Reading
    random_seed: int
    num_buckets: int
    directory: str


def spill_documents(
    input_files: list[str], spill: Spill, num_workers: int, progress: Progress
) -> list[dict[str, Any]]:
    """Spreads a corpus's documents over temporary files by hash(seed, text).

    Args:
        input_files: the corpus.
        spill: the temporary files.
        num_workers: local processes.
        progress: counts the bytes read.

    Returns:
        Of each input file: file, bytes, sha256, documents, sentences, text_bytes (of its
        documents), longest_document (in sentences), odd (`OddInput.to_dict`).

    Raises:
        InputError: for what cannot be read or written.
    """
    groups = _groups(input_files, num_workers)
    jobs = [SpillJob(number, group, spill) for number, group in enumerate(groups)]
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
    """The input files of one process, and the temporary files for their documents.

    Attributes:
        number: of the group of files, part of the temporary files' names.
        input_files: the input files.
        spill: the temporary files.
    """

    number: int
    input_files: list[str]
    spill: Spill


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
            f"{job.spill.directory}: cannot be written ({error.strerror or error})"
        ) from None


def _spill(job: SpillJob, meter: Meter) -> list[dict[str, Any]]:
    buffers: dict[int, list[bytes]] = defaultdict(list)
    most = min(_SPILL_BUFFER_BYTES, job.spill.num_buckets * _SPILL_BYTES_A_BUCKET)
    buffered = 0
    entries = []
    for path in job.input_files:
        source = _Source(path, meter)
        odd = OddInput()
        num_documents = num_sentences = text_bytes = longest = 0
        for document in read_texts(path, job.spill.reading, odd, source.open):
            text = document.encode()
            digest = document_digest(text, job.spill.random_seed)
            entry = _HEAD.pack(digest, len(text)) + text
            buffers[bucket_of(digest, job.spill.num_buckets)].append(entry)
            buffered += len(entry) + _OBJECT_BYTES
            if buffered > most:
                _flush(buffers, job)
                buffered = 0
            sentences = document.count("\n") + 1
            num_documents += 1
            num_sentences += sentences
            text_bytes += len(text)
            longest = max(longest, sentences)
        entries.append(
            {
                "file": path,
                "bytes": source.num_bytes,
                "sha256": source.sha256.hexdigest(),
                "documents": num_documents,
                "sentences": num_sentences,
                "text_bytes": text_bytes,
                "longest_document": longest,
                "odd": odd.to_dict(),
            }
        )
    _flush(buffers, job)
    for path in _all_spilled(job.spill.directory, range(job.spill.num_buckets), [job.number]):
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # A plan that says that all has been read must not come first.
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

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        self.num_bytes += len(data)
        self._meter.add(len(data))
        return data


def _groups(input_files: list[str], num_workers: int) -> list[list[str]]:
    """Shares files out to workers, about the same amount of text to each."""
    sizes = {path: text_bytes_of(path, os.path.getsize(path)) for path in input_files}
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


def spilled_files(directory: str) -> dict[str, int]:
    """Lists the temporary files, so that a later build can tell whether they are all there.

    Args:
        directory: where `spill_documents` put them.

    Returns:
        Their names and sizes in bytes.
    """
    with os.scandir(directory) as found:
        sizes = {e.name: e.stat().st_size for e in found if e.name.startswith(_SPILLED)}
    return dict(sorted(sizes.items()))


def read_spilled(
    directory: str, num_buckets: int, shard: int, num_shards: int
) -> list[list[bytes]]:
    """Reads a shard's documents back in their canonical order, the order of their digests.

    Args:
        directory: where `spill_documents` put them.
        num_buckets: how many temporary files there are, of which an empty one is absent.
        shard: the shard's number.
        num_shards: a multiple or a divisor of `num_buckets`.

    Returns:
        Sentences (UTF-8) of each document.

    Raises:
        InputError: when a file is not as it was written.
    """
    buckets = range(shard % num_buckets, num_buckets, num_shards)
    entries = []
    for path in _all_spilled(directory, buckets, range(_MAX_GROUPS)):
        with open(path, "rb") as file:
            while head := file.read(_HEAD.size):
                digest, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", -1)
                text = file.read(max(length, 0))
                if len(text) != length:
                    raise InputError(f"{path}: is cut short: remove its folder to begin anew")
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
