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
import io
import os
import struct
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, BinaryIO

from data_tools import lines
from data_tools.corpus import Reading, format_of, is_divisible, read_texts
from data_tools.formats import starts_document
from data_tools.jobs import Meter, Progress, run_jobs, watched
from data_tools.lines import WHOLE, BadUnits, OddInput, Part, is_archive
from data_tools.settings import check_worker
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
_MAX_GROUPS = 100
_BLOCK_BYTES = 1 << 20


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


# --- one input file ---


class InputFile:
    """An input file whose bytes are hashed and counted as its documents are read.

    The checksum therefore belongs to the bytes that the documents came from, even if the file
    changes at the same time.

    Args:
        path: path of the file.
        reading: settings for reading documents.
        on_read: called with the number of bytes of every block that is read.
        part: the part of the file to read; one that is not the whole file is not hashed.
    """

    def __init__(
        self,
        path: str,
        reading: Reading,
        on_read: Callable[[int], None] = lambda num_bytes: None,
        part: Part = WHOLE,
    ):
        self._path, self._reading, self._part = path, reading, part
        self._on_read = on_read
        self._sha256, self._num_bytes, self._odd = hashlib.sha256(), 0, OddInput()
        self._num_documents = self._num_sentences = self._text_bytes = self._longest = 0

    def documents(self) -> Iterator[bytes]:
        """Yields each document as UTF-8 text with one sentence per line; can be called once.

        Raises:
            InputError: see `read_documents`.
        """
        for document in read_texts(self._path, self._reading, self._odd, self._open, self._part):
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
            sentences in a document; and odd (`OddInput.to_dict`). That of a part has bad_lines
            (`BadUnits`), and no meaningful sha256.
        """
        bad_lines = {} if self._part == WHOLE else {"bad_lines": self._odd.bad_lines}
        return {
            "file": self._path,
            "bytes": self._num_bytes,
            "sha256": self._sha256.hexdigest(),
            "documents": self._num_documents,
            "sentences": self._num_sentences,
            "text_bytes": self._text_bytes,
            "longest_document": self._longest,
            "odd": self._odd.to_dict(),
        } | bad_lines

    def _open(self, path: str) -> "_HashedStream":
        stream = open(path, "rb", buffering=0)  # noqa: SIM115
        if self._part != WHOLE:
            return _CountedStream(stream, self._add)
        return _HashedStream(path, stream, self._add)

    def _add(self, data: bytes) -> None:
        if self._part == WHOLE:
            self._sha256.update(data)
        self._num_bytes += len(data)
        self._on_read(len(data))


@dataclass(frozen=True)
class DividedFile:
    """A text file in several parts, which start and end between two documents.

    Attributes:
        state: size and time of the last change when the file was divided.
    """

    path: str
    parts: list[Part]
    num_bytes: int
    sha256: str
    state: tuple[int, int]

    @classmethod
    def of(
        cls, path: str, reading: Reading, num_parts: int, on_read: Callable[[int], None]
    ) -> "DividedFile":
        """Divides a file into at most `num_parts` parts of about the same size.

        `on_read` is called with the number of bytes of every block that is read.
        """
        digest = hashlib.sha256()
        parts, line = [], 1
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                starts = _part_starts(file, status.st_size, num_parts, reading)
                for start, end in zip(starts, [*starts[1:], None], strict=True):
                    parts.append(Part(start, end, line))
                    file.seek(start)
                    while block := file.read(
                        _BLOCK_BYTES if end is None else min(_BLOCK_BYTES, end - file.tell())
                    ):
                        digest.update(block)
                        line += block.count(b"\n")
                        on_read(len(block))
                num_bytes = file.tell()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
        state = status.st_size, status.st_mtime_ns
        return cls(path, parts, num_bytes, digest.hexdigest(), state)

    def entry(self, parts: list[dict[str, Any]], reading: Reading) -> dict[str, Any]:
        """Returns the manifest entry of the file, given those of its parts in their order.

        Raises:
            InputError: too many lines are bad, or the file has changed.
        """
        status = os.stat(self.path)
        if (status.st_size, status.st_mtime_ns) != self.state:
            raise _changed_error(self.path)
        bad = [part["bad_lines"] for part in parts]
        first = next((part.first for part in bad if part.first), "")
        BadUnits(sum(b.num_bad for b in bad), sum(b.num_units for b in bad), first).check(
            reading.max_bad_line_share, "lines"
        )
        odd = OddInput()
        for part in parts:
            odd.merge(part["odd"])
        totals = {
            name: sum(part[name] for part in parts)
            for name in ("documents", "sentences", "text_bytes")
        }
        if not totals["documents"]:
            odd.add("empty_files", {"file": self.path, "line": 1, "offset": 0})
        return {
            "file": self.path,
            "bytes": self.num_bytes,
            "sha256": self.sha256,
            **totals,
            "longest_document": max(part["longest_document"] for part in parts),
            "odd": {kind: entry | {"files": 1} for kind, entry in odd.to_dict().items()},
        }


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


class _CountedStream(io.RawIOBase):
    """A binary stream that calls `on_read` with all bytes that are read."""

    def __init__(self, stream: BinaryIO, on_read: Callable[[bytes], None]):
        self._stream, self._on_read = stream, on_read
        self.seek = stream.seek

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._on_read(data)
        return data

    def close(self) -> None:
        self._stream.close()
        super().close()


class _HashedStream(io.RawIOBase):
    """A binary stream that calls `on_read` once with each byte of a file, in their order.

    Files such as Parquet are read in another order, or not completely. Then a part that was skipped
    is read for `on_read` when a later part is read, or at the end.
    """

    # Longer jumps are those to the end of the file and back.
    _MAX_SKIPPED_BYTES = 64 << 20

    def __init__(self, path: str, stream: BinaryIO, on_read: Callable[[bytes], None]):
        self._path, self._stream, self._on_read = path, stream, on_read
        self._position = self._num_passed = 0
        self._is_in_order = True
        self._state = self._file_state()

    def __enter__(self) -> "_HashedStream":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and not self._is_in_order:
                self._pass_until(None)
                if self._file_state() != self._state:
                    raise _changed_error(self._path)
        finally:
            self.close()

    def read(self, size: int = -1) -> bytes:
        if 0 < self._position - self._num_passed <= self._MAX_SKIPPED_BYTES:
            self._pass_until(self._position)
        data = self._stream.read(size)
        if self._position <= self._num_passed < self._position + len(data):
            new = data[self._num_passed - self._position :]
            self._on_read(new)
            self._num_passed += len(new)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = self._stream.seek(offset, whence)
        self._is_in_order &= position == self._position
        self._position = position
        return position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()

    def _pass_until(self, end: int | None) -> None:
        """Calls `on_read` with the bytes before `end`, or with all bytes, that it has not had."""
        self._stream.seek(self._num_passed)
        while end is None or self._num_passed < end:
            rest = _BLOCK_BYTES if end is None else min(end - self._num_passed, _BLOCK_BYTES)
            data = self._stream.read(rest)
            if not data:
                break
            self._on_read(data)
            self._num_passed += len(data)
        self._stream.seek(self._position)

    def _file_state(self) -> tuple[int, int] | None:
        try:
            state = os.fstat(self._stream.fileno())
        except (AttributeError, OSError):  # not a local file
            return None
        return state.st_size, state.st_mtime_ns


def _changed_error(path: str) -> InputError:
    return InputError(f"{path}: the content changed while it was read; run the same command again")


# --- writing ---


@dataclass(frozen=True)
class Spill:
    """The temporary files of a corpus: `num_buckets` for each job, in folders of `directory`.

    `made_with` are the package versions that all workers must have.
    """

    reading: Reading
    random_seed: int
    num_buckets: int
    directory: str
    made_with: Mapping[str, str]


@dataclass(frozen=True)
class SpillJob:
    """The input files, or parts of them, that one process distributes, and its index."""

    number: int
    input_files: list[tuple[str, Part]]
    spill: Spill

    def meter_path(self) -> str:
        """Returns the path of the file in which the job counts the bytes that it has read."""
        return os.path.join(self.spill.directory, f"reading-{self.number:02d}")


def spill_documents(
    input_files: list[str],
    spill: Spill,
    num_workers: int,
    progress: Progress,
    executor: Executor | None = None,
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Distributes the documents of a corpus over temporary files.

    Returns:
        The result of `InputFile.entry` for each input file, and {name: size in bytes} of the
        temporary files. A name has the form `documents-ID/BUCKET`.

    Raises:
        InputError: if a file cannot be read or written.
    """
    groups, divided = _groups(input_files, num_workers, spill.reading)
    jobs = [SpillJob(number, group, spill) for number, group in enumerate(groups)]
    of_parts: dict[tuple[str, Part], dict[str, Any]] = {}
    spilled: dict[str, int] = {}
    with watched([job.meter_path() for job in jobs], progress):
        for group_entries, group_files in run_jobs(spill_group, jobs, num_workers, executor):
            of_parts |= group_entries
            spilled |= group_files
    entries = {path: entry for (path, part), entry in of_parts.items() if part == WHOLE}
    for file in divided:
        of_file = [of_parts[file.path, part] for part in file.parts]
        entries[file.path] = file.entry(of_file, spill.reading)
    return [entries[path] for path in input_files], dict(sorted(spilled.items()))


def spill_group(job: SpillJob) -> tuple[dict[tuple[str, Part], dict[str, Any]], dict[str, int]]:
    """Writes the documents of one job to temporary files in a new folder.

    Returns `InputFile.entry` for each of its files or parts, and {name: size in bytes} of the
    temporary files.
    """
    check_worker(job.spill.made_with, job.spill.reading.input_format)
    try:
        with Meter(job.meter_path()) as meter:
            return _spill(job, meter)
    except OSError as error:  # A read error is an InputError already.
        raise InputError(
            f"{job.spill.directory}: cannot be written ({error.strerror or error})"
        ) from None


def _spill(
    job: SpillJob, meter: Meter
) -> tuple[dict[tuple[str, Part], dict[str, Any]], dict[str, int]]:
    spill, name = job.spill, SPILLED + uuid.uuid4().hex
    folder = os.path.join(spill.directory, name)
    os.mkdir(folder)
    buffers: dict[int, list[bytes]] = defaultdict(list)
    max_buffered = min(_SPILL_BUFFER_BYTES, spill.num_buckets * _SPILL_BYTES_PER_BUCKET)
    buffered = 0
    entries = {}
    for path, part in job.input_files:
        source = InputFile(path, spill.reading, meter.add, part)
        for text in source.documents():
            digest = document_digest(text, spill.random_seed)
            entry = _HEAD.pack(digest, len(text)) + text
            buffers[bucket_of(digest, spill.num_buckets)].append(entry)
            buffered += len(entry) + _OBJECT_BYTES
            if buffered > max_buffered:
                _flush(buffers, folder)
                buffered = 0
        entries[path, part] = source.entry()
    _flush(buffers, folder)
    spilled = {}
    for bucket in os.listdir(folder):
        with open(os.path.join(folder, bucket), "rb") as file:
            os.fsync(file.fileno())  # The plan must not reach the disk before these files.
            spilled[f"{name}/{bucket}"] = os.fstat(file.fileno()).st_size
    return entries, spilled


def _flush(buffers: dict[int, list[bytes]], folder: str) -> None:
    for bucket, entries in buffers.items():
        with open(os.path.join(folder, f"{bucket:05d}"), "ab") as file:
            file.writelines(entries)
    buffers.clear()


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


# --- reading back ---


def spilled_files(directory: str) -> dict[str, int]:
    """Returns {name: size in bytes} of the temporary files in a folder, which detects damage."""
    sizes = {}
    for folder in os.listdir(directory):
        path = os.path.join(directory, folder)
        if folder.startswith(SPILLED) and os.path.isdir(path):
            with os.scandir(path) as found:
                sizes |= {f"{folder}/{entry.name}": entry.stat().st_size for entry in found}
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
