"""Extracts checkpoints from the zip files of Google's release, with limits for hostile archives."""

import contextlib
import lzma
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from keras_bert.common.errors import InputError

# Weights cannot be compressed by a factor of _MAX_RATIO. _SMALL_ZIP bytes are harmless anyway.
_MAX_RATIO, _SMALL_ZIP = 10, 64 << 20


@contextlib.contextmanager
def unpacked(path: Path, selected: str) -> Iterator[Path]:
    """Extracts files of a zip into one flat temporary folder, which exists within the context.

    Args:
        path: the zip.
        selected: a regular expression; files with matching names are extracted.

    Raises:
        InputError: the zip is damaged, encrypted or too large, or has two files of one name.
    """
    # A damaged or unsupported (encrypted, deflate64) archive raises any of these.
    failures = (
        OSError,
        zipfile.BadZipFile,
        RuntimeError,
        EOFError,
        UnicodeDecodeError,
        zlib.error,
        lzma.LZMAError,
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                members = _members(archive, selected)
                _check_size(path, members, Path(folder))
                for name, member in members.items():
                    # Reads at most `file_size` bytes, even if the archive contains more.
                    with archive.open(member) as source, open(Path(folder, name), "wb") as target:
                        shutil.copyfileobj(source, target)
        except failures as error:
            raise InputError(f"{path}: cannot be extracted ({error})") from None
        yield Path(folder)


def _members(archive: zipfile.ZipFile, selected: str) -> dict[str, zipfile.ZipInfo]:
    """Returns the selected files of a zip by name, without their folders."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = PurePosixPath(member.filename).name
        if member.is_dir() or not re.fullmatch(selected, name):
            continue
        if name in members:
            raise InputError(
                f"{archive.filename}: contains {name} twice ({members[name].filename} and "
                f"{member.filename}); expected the files of one checkpoint"
            )
        members[name] = member
    return members


def _check_size(path: Path, members: Mapping[str, zipfile.ZipInfo], folder: Path) -> None:
    """Checks that the extracted files fit on the disk, and are not a zip bomb."""
    size = sum(member.file_size for member in members.values())
    allowed = max(_SMALL_ZIP, _MAX_RATIO * path.stat().st_size)
    if size > allowed:
        raise InputError(
            f"{path}: would be extracted to {size:,} bytes; expected at most {allowed:,}, which is "
            f"{_MAX_RATIO} times its size"
        )
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"{path}: would be extracted to {size:,} bytes, but {folder.parent} has {free:,} bytes "
            "free; set TMPDIR to another folder, or extract the zip yourself"
        )
