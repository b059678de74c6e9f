"""Reads and writes files on Apache Beam's file systems: local files, gs://, s3:// and hdfs://.

A file appears completely or not at all. If Beam runs the same work twice, two workers create the
same file with equal content, in any order.
"""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from data_tools.corpus import documents
from keras_bert.common.errors import InputError


def is_local(path: str) -> bool:
    """Returns whether a path is on this machine."""
    return "://" not in path


def find_input_files(patterns: str, input_format: str) -> list[dict[str, Any]]:
    """Finds the distinct files that `patterns`, the value of --input_file, matches.

    Beam expands remote patterns: a folder stands for all files below it, and names with a leading
    dot are skipped. `input_format` is that of the corpus. Returns {"file": path, "bytes": size} for
    each file. Raises an `InputError` if an entry of the list matches no file.
    """
    if is_local(patterns):
        paths = documents.find_input_files(patterns, input_format)
        return [{"file": path, "bytes": os.path.getsize(path)} for path in paths]
    found: dict[str, int] = {}
    for entry in filter(None, (entry.strip() for entry in patterns.split(","))):
        if is_local(entry):
            paths = documents.find_input_files(entry, input_format)
            found |= {path: os.path.getsize(path) for path in paths}
            continue
        matches = {}
        with contextlib.suppress(InputError):  # not a folder
            matches = _match(entry.rstrip("/") + "/**")
        matches = matches or _match(entry)
        visible = {path: size for path, size in sorted(matches.items()) if "/." not in path}
        if not visible:
            raise InputError(
                f"--input_file: no file matches {entry!r}; expected a file, glob or folder"
            )
        found |= visible
    return [{"file": path, "bytes": size} for path, size in found.items()]


def _match(pattern: str) -> dict[str, int]:
    try:
        (result,) = FileSystems.match([pattern])
    except (BeamIOError, ValueError) as error:
        raise InputError(f"{pattern}: cannot be listed ({error})") from None
    return {file.path: file.size_in_bytes for file in result.metadata_list}


def list_sizes(folder: str, ending: str) -> dict[str, int]:
    """Returns {name: size in bytes} of the files in a folder with names that end in `ending`.

    The result is sorted by name, and empty if there is no such folder.
    """
    if is_local(folder):  # no glob, because the folder name may contain "["
        names = os.listdir(folder) if os.path.isdir(folder) else []
        names = [name for name in names if name.endswith(ending)]
        sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in names}
    else:
        found = _match(f"{folder}/*{ending}")
        sizes = {path.rsplit("/", 1)[-1]: size for path, size in found.items()}
    return dict(sorted(sizes.items()))


def exists(path: str) -> bool:
    """Returns whether a file exists, or a folder on file systems that have folders."""
    return FileSystems.exists(path)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading its bytes without decompression; raises an `OSError` on failure."""
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def read_bytes(path: str) -> bytes:
    """Reads a file; raises an `InputError` if that fails."""
    try:
        with open_file(path) as file:
            return file.read()
    except (OSError, BeamIOError) as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)})") from None


def read_json(path: str) -> Any:
    """Reads JSON from a file; raises an `InputError` if that fails or the content is not JSON."""
    content = read_bytes(path)
    try:
        return json.loads(content)
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None


def sha256(path: str) -> str:
    """Returns the SHA-256 checksum of a file in hexadecimal; raises an `OSError` if that fails."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str, content: Any) -> None:
    """Writes JSON; see `write_bytes`."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file completely or not at all; raises an `InputError` if that fails."""
    partial = _partial(path)
    with _writing(path, partial):
        with FileSystems.create(partial, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            file.write(content)
        _move_into_place(partial, path)


def upload(source: str, path: str) -> None:
    """Copies a local file completely or not at all; raises an `InputError` if that fails."""
    partial = _partial(path)
    with _writing(path, partial):
        with (
            open(source, "rb") as local,
            FileSystems.create(partial, compression_type=CompressionTypes.UNCOMPRESSED) as file,
        ):
            shutil.copyfileobj(local, file, 1 << 20)
        _move_into_place(partial, path)


def move(sources: list[str], destinations: list[str]) -> None:
    """Moves each source to its destination; raises an `InputError` if that fails."""
    if sources:
        with _writing(destinations[0], None):
            FileSystems.rename(sources, destinations)


def make_folder(path: str) -> None:
    """Creates a folder, if the file system has folders; raises an `InputError` if that fails."""
    with _writing(path, None):
        if not FileSystems.exists(path):
            FileSystems.mkdirs(path)


def remove_folder(path: str) -> None:
    """Removes a folder and its content; ignores errors."""
    if is_local(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(BeamIOError, OSError):
        FileSystems.delete([path + "/"])  # Object stores recognize a folder by its slash.


def _partial(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{uuid.uuid4().hex}.partial"


def _move_into_place(partial: str, path: str) -> None:
    try:
        FileSystems.rename([partial], [path])
    except BeamIOError:
        # Some file systems do not overwrite. Another worker has created the same file.
        if not FileSystems.exists(path):
            raise
        remove(partial)


def remove(path: str) -> None:
    """Removes a file; ignores errors."""
    with contextlib.suppress(OSError, BeamIOError):
        if is_local(path):
            os.remove(path)
        else:
            FileSystems.delete([path])


@contextlib.contextmanager
def _writing(path: str, partial: str | None) -> Iterator[None]:
    """Converts write errors to an `InputError`, and removes the partial file after an error."""
    try:
        yield
    except (OSError, BeamIOError) as error:
        if partial is not None:
            remove(partial)
        raise InputError(f"{path}: cannot be written ({_reason(error)})") from None


def _reason(error: Exception) -> str:
    details = getattr(error, "exception_details", None) or {}
    causes = [error, *details.values()]
    return " ".join(str(getattr(causes[-1], "strerror", None) or causes[-1]).split())
