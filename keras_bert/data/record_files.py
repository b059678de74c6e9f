"""Finds the record files that `--input_file` selects, and reads their manifests.

A folder written by `data_tools.create_pretraining_data` has a manifest.json with the settings, the
vocabulary, and the size, number of rows and checksum of each record file. Other tools write no
manifest.
"""

import glob
import os
from dataclasses import dataclass
from typing import Any

from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json
from keras_bert.text.settings import TokenizerSettings

FORMAT, VERSION = "keras_bert.pretraining", 2
MANIFEST = "manifest.json"
_NOT_RECORDS = (MANIFEST, "vocab.txt")
NEXT_SENTENCE = ("random", "order", "none")
# The settings in a manifest that readers of the records need, with their types or values.
_SETTINGS: dict[str, type | tuple[str, ...]] = {
    "do_lower_case": bool,
    "do_whole_word_mask": bool,
    "ngram": int,
    "next_sentence": NEXT_SENTENCE,
    "dynamic": bool,
    "pack": bool,
    "max_predictions_per_seq": int,
    "masked_lm_prob": float,
}


@dataclass(frozen=True)
class RecordFiles:
    """The record files of one folder, and the content of its manifest.json (None without one)."""

    folder: str
    names: list[str]
    manifest: dict[str, Any] | None

    def paths(self) -> list[str]:
        """Returns the paths of the files."""
        return [os.path.join(self.folder, name) for name in self.names]

    def shards(self) -> dict[str, dict[str, Any]]:
        """Returns {file name: its entry in the manifest, a dict}; empty without a manifest."""
        return {shard["file"]: shard for shard in (self.manifest or {"shards": []})["shards"]}

    def vocab_file(self) -> str | None:
        """Returns the path of the vocabulary in the folder; None without a manifest."""
        return self.manifest and os.path.join(self.folder, self.manifest["vocab"]["file"])


def find_record_files(
    input_file: str, flag: str = "input_file", include_unlisted: bool = False
) -> list[RecordFiles]:
    """Finds the record files of comma-separated folders, files and globs, grouped by folder.

    Error messages start with `flag`, the flag that provides the list. With `include_unlisted`, the
    files that a folder's manifest lists are followed by all other record files in the folder.

    Raises:
        InputError: an entry matches no record file, or a manifest is invalid.
    """
    folders: dict[str, str] = {}  # several paths of one folder count as one
    names: dict[str, dict[str, None]] = {}
    manifests: dict[str, dict[str, Any] | None] = {}
    # A file name may contain a comma; then the whole value is one file.
    entries = [input_file] if os.path.exists(input_file) else input_file.split(",")
    for entry in filter(None, (entry.strip() for entry in entries)):
        # A file name may contain glob characters.
        matches = [entry] if os.path.exists(entry) else sorted(glob.glob(entry))
        found: list[str] = []
        for match in matches:
            folder = match if os.path.isdir(match) else os.path.dirname(match)
            folder = folders.setdefault(os.path.realpath(folder), folder)
            if folder not in manifests:
                manifests[folder] = _read_manifest(folder)
            if of_match := _names_in(match, manifests[folder], include_unlisted):
                names.setdefault(folder, {}).update(dict.fromkeys(of_match))
                found += of_match
        if not found:
            raise InputError(f"--{flag}: no record files match {entry!r}")
    if not names:
        raise InputError(
            f"--{flag}={input_file!r}: contains no paths; expected folders, files or globs"
        )
    return [RecordFiles(folder, list(found), manifests[folder]) for folder, found in names.items()]


def _names_in(match: str, manifest: dict[str, Any] | None, include_unlisted: bool) -> list[str]:
    if not os.path.isdir(match):
        name = os.path.basename(match)
        return [] if name in _NOT_RECORDS else [name]
    listed = [shard["file"] for shard in (manifest or {"shards": []})["shards"]]
    if manifest and not include_unlisted:
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
        _check_settings(path, manifest["settings"])
        TokenizerSettings.read(path, manifest["settings"])  # raises for invalid values
        _ = os.path.join(folder, manifest["vocab"]["file"]), manifest["vocab"]["sha256"]
        for shard in manifest["shards"]:
            _ = os.path.join(folder, shard["file"]), shard["sha256"]
            _ = 0 + shard["rows"] + shard["bytes"]
        _ = [entry.get for entry in manifest["inputs"]], manifest["counts"].get
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a manifest of create_pretraining_data: {error!r}") from None
    return manifest


def _check_settings(path: str, settings: dict[str, Any]) -> None:
    for name, expected in _SETTINGS.items():
        value = settings[name]
        if isinstance(expected, tuple):
            is_valid, described = value in expected, "one of " + ", ".join(expected)
        else:
            is_valid, described = type(value) is expected, f"a value of type {expected.__name__}"
        if not is_valid:
            raise InputError(f"{path}: {name} is {value!r:.60}; expected {described}")
