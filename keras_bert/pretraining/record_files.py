"""Finds the record files of pre-training and reads their manifest, without TensorFlow."""

import glob
import os
from collections.abc import Mapping
from typing import Any

from keras_bert.errors import InputError
from keras_bert.files import check_schema, read_json
from keras_bert.pretraining.settings import NEXT_SENTENCE
from keras_bert.text.settings import TokenizerSettings

FORMAT, VERSION = "keras_bert.pretraining", 2
MANIFEST = "manifest.json"
_NOT_RECORDS = (MANIFEST, "vocab.txt")
# The entries of a manifest that readers of the records need (`files.check_schema`).
_SCHEMA = {
    "settings": {
        "do_lower_case": bool,
        "do_whole_word_mask": bool,
        "ngram": int,
        "next_sentence": str,
        "dynamic": bool,
        "pack": bool,
        "max_predictions_per_seq": int,
        "masked_lm_prob": float,
    },
    "vocab": {"file": str, "sha256": str},
    "shards": [{"file": str, "rows": int, "bytes": int, "sha256": str}],
    "inputs": [{"odd": dict}],
    "counts": {"documents": int, "sentences": int, "examples": int, "rows": int},
}


def find_record_files(
    input_file: str, flag: str = "input_file", include_unlisted: bool = False
) -> list[tuple[str, list[str], dict[str, Any] | None]]:
    """Finds the record files of comma-separated folders, files and globs, grouped by folder.

    Error messages start with `flag`, the flag that provides the list. With `include_unlisted`, the
    files that a folder's manifest lists are followed by all other record files in the folder.

    Returns:
        Each folder, the names of its record files, and the content of its manifest.json or None.
    """
    folders: dict[str, str] = {}  # several paths of one folder count as one
    names: dict[str, dict[str, None]] = {}
    manifests: dict[str, dict[str, Any] | None] = {}
    # A file name may contain a comma; then the whole value is one file.
    entries = [input_file] if os.path.exists(input_file) else input_file.split(",")
    for entry in filter(None, (entry.strip() for entry in entries)):
        # A file name may contain glob characters.
        matches = [entry] if os.path.exists(entry) else sorted(glob.glob(entry))
        num_files = 0
        for match in matches:
            folder = match if os.path.isdir(match) else os.path.dirname(match)
            folder = folders.setdefault(os.path.realpath(folder), folder)
            if folder not in manifests:
                manifests[folder] = read_manifest(os.path.join(folder, MANIFEST))
            if of_match := _names_in(match, manifests[folder], include_unlisted):
                names.setdefault(folder, {}).update(dict.fromkeys(of_match))
                num_files += len(of_match)
        if not num_files:
            raise InputError(
                f"--{flag}: no record files match {entry!r}; expected files that keras-bert "
                "create-pretraining-data wrote"
            )
    if not names:
        raise InputError(
            f"--{flag}={input_file!r}: contains no paths; expected folders, files or globs"
        )
    return [(folder, list(files), manifests[folder]) for folder, files in names.items()]


def _names_in(match: str, manifest: dict[str, Any] | None, include_unlisted: bool) -> list[str]:
    if not os.path.isdir(match):
        name = os.path.basename(match)
        return [] if name in _NOT_RECORDS else [name]
    listed = [*shards_of(manifest)]
    if manifest and not include_unlisted:
        return listed
    present = sorted(os.path.basename(p) for p in glob.glob(f"{glob.escape(match)}/*.tfrecord*"))
    return list(dict.fromkeys(listed + present))


def read_manifest(path: str) -> dict[str, Any] | None:
    """Reads a manifest; returns None if the file does not exist."""
    if not os.path.exists(path):
        return None
    manifest = read_json(path)
    version = manifest.get("format"), manifest.get("version")
    if version != (FORMAT, VERSION):
        raise InputError(
            f"{path}: has format {version[0]!r} and version {version[1]!r}; expected a manifest of "
            f"create-pretraining-data, version {VERSION}; create the records again"
        )
    check_schema(f"{path}:", manifest, _SCHEMA)
    if (value := manifest["settings"]["next_sentence"]) not in NEXT_SENTENCE:
        raise InputError(
            f"{path}: next_sentence is {value!r}; expected one of {', '.join(NEXT_SENTENCE)}"
        )
    TokenizerSettings.read(path, manifest["settings"])  # raises for invalid values
    return manifest


def shards_of(manifest: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Returns {file name: its entry in the manifest}; empty without a manifest."""
    return {shard["file"]: shard for shard in manifest["shards"]} if manifest else {}


def check_same(name: str, values: Mapping[Any, Any], remedy: str = "") -> None:
    """Raises an InputError unless all values of {file or flag: value} are equal."""
    first = next(iter(values), None)
    for where, value in values.items():
        if value != values[first]:
            raise InputError(
                f"{where}: {name} is {value}; expected {values[first]}, as in {first}{remedy}"
            )
