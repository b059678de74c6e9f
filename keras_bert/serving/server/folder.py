"""The folder of versions, as it lies on the disk: DIR/1, DIR/2, ... each a SavedModel."""

from pathlib import Path

from keras_bert.common.errors import InputError
from keras_bert.serving.version_folders import find_versions

MODEL_FILE = "saved_model.pb"


def require_version(folder: Path) -> dict[int, Path]:
    """Finds the versions in a folder, and refuses one without.

    Args:
        folder: DIR.

    Returns:
        Number -> DIR/NUMBER, of the folders that hold a SavedModel.

    Raises:
        InputError: there is no such folder, or no version in it.
    """
    if not folder.is_dir():
        raise InputError(f"--export_dir={folder}: no such folder")
    versions = find_versions(folder, MODEL_FILE)
    if not versions:
        raise InputError(
            f"--export_dir={folder} has no version: expected {folder}/1/{MODEL_FILE} or the like"
        )
    return versions


def describe_files(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Describes a version's files, so that a change shows.

    Args:
        folder: DIR/NUMBER.

    Returns:
        Path, size, time and number (inode) of each file: another model's files may be as large, and
        as old where all times are set to one.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            status = path.stat()
        except FileNotFoundError:  # It went as we looked.
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(found)
