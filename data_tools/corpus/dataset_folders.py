"""Selects the Arrow files of folders that Hugging Face's `Dataset.save_to_disk` wrote.

dataset_dict.json           {"splits": [name, ...]}, if the folder has a subfolder for each split
state.json                  {"_data_files": [{"filename": "data-00000-of-00002.arrow"}, ...]}
dataset_info.json           description
data-00000-of-00002.arrow   record batches as an Arrow stream
"""

import json
import os
from collections.abc import Iterable
from typing import Any

from keras_bert.common.errors import InputError

_STATE, _SPLITS = "state.json", "dataset_dict.json"
_INDICES = ("_indices_files", "_indices_data_files")


def select_data_files(paths: Iterable[str]) -> list[str]:
    """Returns the paths of a corpus without other files of dataset folders than their data files.

    Folders without state.json are returned unchanged.

    Raises:
        InputError: a folder lacks a data file or a split, or its description is invalid.
    """
    paths = list(paths)
    found = set(paths)
    for path in paths:
        if os.path.basename(path) == _SPLITS:
            folder = os.path.dirname(path)
            for split in _names(path, "splits"):
                if os.path.join(folder, split, _STATE) not in found:
                    raise InputError(
                        f"{path}: lists the split {split!r}, but {os.path.join(folder, split)} "
                        f"has no {_STATE}; expected the complete folder of Dataset.save_to_disk"
                    )
            found.discard(path)
    for path in paths:
        if os.path.basename(path) == _STATE:
            folder = os.path.dirname(path)
            listed = {os.path.join(folder, name) for name in _names(path, "_data_files")}
            if missing := sorted(listed - found):
                raise InputError(
                    f"{path}: lists {len(listed)} data files, but {missing[0]} is missing; "
                    "expected the complete folder of Dataset.save_to_disk"
                )
            found -= {each for each in found if os.path.dirname(each) == folder} - listed
    return [path for path in paths if path in found]


def _names(path: str, key: str) -> list[str]:
    """Returns the names in a list of names, or of {"filename": name}, in a JSON file."""
    expected = f"expected a file that Dataset.save_to_disk wrote, with a list {key!r}"
    try:
        with open(path, "rb") as file:
            content = json.load(file)
            names = [_name(entry) for entry in content[key]]
            has_indices = any(content.get(name) for name in _INDICES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: invalid content ({error!r:.80}); {expected}") from None
    if has_indices:
        raise InputError(
            f"{path}: selects rows of its data files by indices, the format of an old version of "
            "datasets; save the dataset again with a version from 2.0 on"
        )
    return names


def _name(entry: Any) -> str:
    name = entry["filename"] if isinstance(entry, dict) else entry
    if not isinstance(name, str) or os.path.basename(name) != name:
        raise ValueError(name)
    return name
