"""Finds the versions of a model, DIR/1, DIR/2, ..., and describes their files."""

from pathlib import Path

from keras_bert.common.errors import InputError
from keras_bert.serving.version_folders import find_versions

MODEL_FILE = "saved_model.pb"


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
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            status = path.stat()
        except FileNotFoundError:  # Deleted in the meantime.
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(found)
