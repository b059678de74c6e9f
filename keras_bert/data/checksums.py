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
    """Returns {path: {"bytes", "modified_ns", "sha256"}} of files.

    `known` has the result of an earlier call, or nothing. `advance` is called with the number of
    bytes of each part of the files. A file that cannot be read raises InputError.
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
    """Yields a message for each file whose checksum is not the expected one.

    Expected are the checksum in the manifest of its folder, and the `earlier` one, which is
    recorded in the file `recorded_in`. Files that are not in `found` are skipped.
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
