"""Finds, checks and describes the numbered versions in a model's folder.

As in TensorFlow Serving, a version is a non-negative signed int64. `DIR/1` and `DIR/01` are the
same version; the folder with the shorter name is used.
"""

import re
from pathlib import Path

from keras_bert.errors import InputError

# The files of a version.
MODEL_FILE = "saved_model.pb"
INFO = "export.json"
CARD = "README.md"
_LARGEST = 2**63 - 1


def version_number(name: str) -> int | None:
    """Converts the name of a version folder to a number; returns None for other names."""
    match = re.fullmatch("0*([0-9]{1,19})", name)
    return int(match[1]) if match and int(match[1]) <= _LARGEST else None


def find_versions(folder: Path, file: str = "") -> dict[int, Path]:
    """Returns {version number: version folder} for a model's folder; {} if it does not exist.

    With `file`, the name of a file, only versions that contain this file are returned. Raises an
    OSError if the model's folder is not readable.
    """
    if not folder.is_dir():
        return {}
    # Longer names first, so that the shorter of two names for the same number wins.
    paths = sorted(folder.iterdir(), key=lambda path: len(path.name), reverse=True)
    numbered = ((version_number(path.name), path) for path in paths)
    return {
        number: path
        for number, path in numbered
        if number is not None and (not file or (path / file).is_file())
    }


def next_version(folder: Path) -> int:
    """Returns the number after the highest version in a model's folder; 1 without versions."""
    return 1 + max(find_versions(folder), default=0)


def check_version(export_dir: Path, name: str = "export_dir") -> None:
    """Checks that a folder can be written as a new version.

    `name` is the name of the argument or flag in error messages.

    Raises:
        InputError: the folder's name is not a version number, the version already exists, or the
            parent folder cannot be read.
    """
    number = version_number(export_dir.name)
    if number is None:
        raise InputError(
            f"{name}={export_dir}: {export_dir.name!r} is not a version number; expected a "
            f"number of at most {_LARGEST}, such as {export_dir / '1'}"
        )
    try:
        existing = find_versions(export_dir.parent).get(number)
    except OSError as error:
        raise InputError(f"{name}={export_dir}: {error.strerror}") from error
    if existing is not None:
        raise InputError(
            f"{name}={export_dir}: {existing} already exists; expected a new version, such "
            f"as {export_dir.with_name(str(next_version(export_dir.parent)))}"
        )


def require_version(folder: Path) -> dict[int, Path]:
    """Returns {version number: version folder} of the versions that contain a SavedModel.

    Raises:
        InputError: the model's folder does not exist or contains no such version.
    """
    if not folder.is_dir():
        raise InputError(f"--export_dir={folder}: no such folder")
    versions = find_versions(folder, MODEL_FILE)
    if not versions:
        raise InputError(
            f"--export_dir={folder}: found no version; expected numbered folders of SavedModels, "
            f"such as {folder}/1/{MODEL_FILE}"
        )
    return versions


def describe_files(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Returns (path, size in bytes, modification time in ns, inode) of each file of a version.

    The server compares them to detect changes. Inodes are needed because the files of another model
    may have equal sizes, and equal times if a tool sets all times to one value.
    """
    files = []
    for path in sorted(folder.rglob("*")):
        try:
            status = path.stat()
        except FileNotFoundError:  # Deleted in the meantime.
            continue
        files.append((str(path), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(files)
