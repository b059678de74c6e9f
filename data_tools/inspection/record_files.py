"""`--input_file` in, the record files it names out, verified against their manifests.

A folder of `create_pretraining_data` has a manifest.json with the size and the checksum of each
shard. Other tools' record files have none and are taken as they are.
"""

import glob
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from data_tools.examples import records
from keras_bert import files
from keras_bert.errors import InputError


@dataclass(frozen=True)
class RecordFiles:
    """Record files of one folder.

    Attributes:
        folder: the folder.
        names: the files' names in it.
        manifest: what the folder's manifest.json says, or None.
    """

    folder: str
    names: list[str]
    manifest: dict[str, Any] | None

    def paths(self) -> list[str]:
        """Returns the files' paths."""
        return [os.path.join(self.folder, name) for name in self.names]

    def shards(self) -> dict[str, dict[str, Any]]:
        """Returns the manifest's entries by file name."""
        return {shard["file"]: shard for shard in (self.manifest or {"shards": []})["shards"]}

    def vocab_file(self) -> str | None:
        """Returns the path of the vocabulary beside the manifest, or None."""
        return self.manifest and os.path.join(self.folder, self.manifest["vocab"]["file"])


def find_record_files(input_file: str) -> list[RecordFiles]:
    """Finds record files.

    Args:
        input_file: comma list of folders, files and globs.

    Returns:
        The files by folder.

    Raises:
        InputError: an entry that names nothing, or a manifest that is none.
    """
    folders: dict[str, str] = {}  # one that is given in several ways is one
    names: dict[str, dict[str, None]] = {}
    manifests: dict[str, dict[str, Any] | None] = {}
    # A file may well have a comma in its name; then the whole value is that file.
    entries = [input_file] if os.path.exists(input_file) else input_file.split(",")
    for entry in filter(None, (entry.strip() for entry in entries)):
        matches = [entry] if os.path.exists(entry) else sorted(glob.glob(entry))
        found = []
        for match in matches:
            folder = match if os.path.isdir(match) else os.path.dirname(match)
            folder = folders.setdefault(os.path.realpath(folder), folder)
            if folder not in manifests:
                manifests[folder] = _read_manifest(folder)
            found += _names_in(match, manifests[folder])
            names.setdefault(folder, {}).update(dict.fromkeys(_names_in(match, manifests[folder])))
        if not found:
            raise InputError(f"--input_file: no record files at {entry!r}")
    if not names:
        raise InputError(f"--input_file={input_file!r} names no file")
    return [RecordFiles(folder, list(found), manifests[folder]) for folder, found in names.items()]


def _names_in(match: str, manifest: dict[str, Any] | None) -> list[str]:
    if not os.path.isdir(match):
        name = os.path.basename(match)
        return [] if name in (records.MANIFEST, "vocab.txt") else [name]
    present = sorted(os.path.basename(p) for p in glob.glob(f"{glob.escape(match)}/*.tfrecord*"))
    # Those that the manifest doesn't know come last; `verify` says so.
    of_manifest = [shard["file"] for shard in (manifest or {"shards": []})["shards"]]
    return list(dict.fromkeys(of_manifest + present))


def _read_manifest(folder: str) -> dict[str, Any] | None:
    path = os.path.join(folder, records.MANIFEST)
    if not os.path.exists(path):
        return None
    manifest = files.read_json(path)
    try:
        kind = manifest["format"], manifest["version"]
        _ = manifest["vocab"]["file"], manifest["vocab"]["sha256"], manifest["settings"].get
        _ = [(s["file"], s["bytes"], s["sha256"], s["rows"]) for s in manifest["shards"]]
        _ = [entry.get for entry in manifest["inputs"]], manifest["counts"].get
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a manifest of create_pretraining_data: {error!r}") from None
    if kind != (records.FORMAT, records.VERSION):
        expected = f"{records.FORMAT!r} version {records.VERSION}"
        raise InputError(f"{path}: expected {expected}, got {kind[0]!r} version {kind[1]}")
    return manifest


def verify(found: RecordFiles, progress: Callable[[int], None] = lambda _: None) -> Iterator[str]:
    """Compares files, and the vocabulary beside them, with their manifest.

    Args:
        found: the files.
        progress: called with the bytes read after each file.

    Yields:
        A line for each file that is not what the manifest says.
    """
    shards = found.shards()
    if found.manifest:
        shards[found.manifest["vocab"]["file"]] = found.manifest["vocab"]
    checked = [*found.names, *([found.manifest["vocab"]["file"]] if found.manifest else [])]
    for name in checked:
        path = os.path.join(found.folder, name)
        try:
            size = os.path.getsize(path)
            if found.manifest is None:
                continue
            if name not in shards:
                yield f"{path}: expected no such file, since {records.MANIFEST} has none"
            elif size != (expected := shards[name].get("bytes", size)):
                yield f"{path}: expected {expected} bytes, found {size}"
            elif (digest := files.sha256(path)) != (expected := shards[name]["sha256"]):
                yield f"{path}: expected sha256 {expected}, found {digest}"
        except OSError as error:
            yield f"{path}: expected a file, found none that can be read ({error.strerror})"
        else:
            progress(size)
