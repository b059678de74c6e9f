"""Finds the pre-training record files that `--input_file` names, with their manifests.

A folder that `data_tools.create_pretraining_data` made has a manifest.json: the settings, the
vocabulary, and of each record file the size, the rows and the checksum. Other tools' record files
have none and are taken as they are. Training and inspection both find their files here.
"""

import glob
import os
from dataclasses import dataclass
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json

FORMAT, VERSION = "keras_bert.pretraining", 2
MANIFEST = "manifest.json"
_NOT_RECORDS = (MANIFEST, "vocab.txt")
# The settings that readers of records need.
_SETTINGS = (
    "do_lower_case",
    "do_whole_word_mask",
    "ngram",
    "next_sentence",
    "dynamic",
    "pack",
    "max_predictions_per_seq",
    "masked_lm_prob",
)


@dataclass(frozen=True)
class RecordFiles:
    """Record files of one folder.

    Attributes:
        folder: the folder.
        names: the files' names in it.
        manifest: the content of the folder's manifest.json, or None.
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


def find_record_files(
    input_file: str, flag: str = "input_file", strangers: bool = False
) -> list[RecordFiles]:
    """Finds record files.

    Args:
        input_file: comma list of folders, files and globs.
        flag: the flag that the value came by, for messages.
        strangers: whether a folder's record files that its manifest does not list come too, last.

    Returns:
        The files by folder.

    Raises:
        InputError: an entry that names no record file, or a manifest that is none.
    """
    folders: dict[str, str] = {}  # one that is given in several ways is one
    names: dict[str, dict[str, None]] = {}
    manifests: dict[str, dict[str, Any] | None] = {}
    # A file may well have a comma in its name; then the whole value is that file.
    entries = [input_file] if os.path.exists(input_file) else input_file.split(",")
    for entry in filter(None, (entry.strip() for entry in entries)):
        # A name may hold a glob's characters.
        matches = [entry] if os.path.exists(entry) else sorted(glob.glob(entry))
        found: list[str] = []
        for match in matches:
            folder = match if os.path.isdir(match) else os.path.dirname(match)
            folder = folders.setdefault(os.path.realpath(folder), folder)
            if folder not in manifests:
                manifests[folder] = _read_manifest(folder)
            if of_match := _names_in(match, manifests[folder], strangers):
                names.setdefault(folder, {}).update(dict.fromkeys(of_match))
                found += of_match
        if not found:
            raise InputError(f"--{flag}: no record files match {entry!r}")
    if not names:
        raise InputError(f"--{flag}={input_file!r} names no files")
    return [RecordFiles(folder, list(found), manifests[folder]) for folder, found in names.items()]


def _names_in(match: str, manifest: dict[str, Any] | None, strangers: bool) -> list[str]:
    if not os.path.isdir(match):
        name = os.path.basename(match)
        return [] if name in _NOT_RECORDS else [name]
    listed = [shard["file"] for shard in (manifest or {"shards": []})["shards"]]
    if manifest and not strangers:
        return listed
    present = sorted(os.path.basename(p) for p in glob.glob(f"{glob.escape(match)}/*.tfrecord*"))
    return list(dict.fromkeys(listed + present))


def _read_manifest(folder: str) -> dict[str, Any] | None:
    path = os.path.join(folder, MANIFEST)
    if not os.path.exists(path):
        return None
    manifest = read_json(path)
    try:
        kind = manifest["format"], manifest["version"]
        if kind != (FORMAT, VERSION):
            raise InputError(f"{path}: expected format and version {FORMAT, VERSION}, got {kind}")
        _ = [manifest["settings"][name] for name in _SETTINGS]
        _ = os.path.join(folder, manifest["vocab"]["file"]), manifest["vocab"]["sha256"]
        for shard in manifest["shards"]:
            _ = os.path.join(folder, shard["file"]), shard["sha256"]
            _ = 0 + shard["rows"] + shard["bytes"]
        _ = [entry.get for entry in manifest["inputs"]], manifest["counts"].get
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a manifest of create_pretraining_data: {error!r}") from None
    return manifest
