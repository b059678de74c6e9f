"""Computes checksums of record files, and compares them with manifests and earlier checksums.

A file is read again only if its size or its time of modification has changed since its checksum was
computed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.common.files import sha256
from keras_bert.data.pretraining_records import PretrainingData

Checksums = Mapping[str, Mapping[str, Any]]


def file_checksums(
    paths: Sequence[str], known: Checksums, advance: Callable[[int], None]
) -> dict[str, dict[str, Any]]:
    """Computes {path: {"bytes": size, "modified_ns": time in nanoseconds, "sha256": checksum}}.

    Args:
        paths: the files.
        known: the result of an earlier call, or empty.
        advance: called with the number of bytes of each part that has been read or skipped.

    Raises:
        InputError: a file cannot be read.
    """
    found = {}
    for path in paths:
        try:
            status = Path(path).stat()
            entry = {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}
            before = known.get(path, {})
            if {name: before.get(name) for name in entry} == entry and "sha256" in before:
                entry["sha256"] = before["sha256"]
                advance(status.st_size)
            else:
                entry["sha256"] = sha256(path, advance)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        found[path] = entry
    return found


def find_changes(
    data: PretrainingData, found: Checksums, earlier: Checksums, recorded_in: Path
) -> Iterator[str]:
    """Yields an error message for each record file whose checksum is not as expected.

    A checksum in `found` must be equal to the one in the manifest of the file's folder, and to the
    one in `earlier`. Missing checksums are not compared.

    Args:
        data: the dataset.
        found: the current result of `file_checksums`.
        earlier: the result of `file_checksums` when the run was last started.
        recorded_in: the file that contains `earlier`, for the messages.
    """
    listed = {
        str(folder / shard["file"]): shard["sha256"]
        for folder, manifest in data.manifests.items()
        for shard in manifest["shards"]
    }
    for path in data.files:
        if path not in found:
            continue
        checksum = found[path]["sha256"]
        expected, before = listed.get(path, checksum), earlier.get(path, {}).get("sha256", checksum)
        if checksum != expected:
            yield (
                f"{path}: is damaged: its sha256 is {checksum}; expected {expected}, as in its "
                "manifest"
            )
        elif checksum != before:
            yield (
                f"{path}: has changed since the run started: its sha256 is {checksum}; expected "
                f"{before}, as in {recorded_in}; restore the file, or use another --output_dir"
            )
