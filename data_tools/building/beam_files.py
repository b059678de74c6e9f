"""Files wherever Apache Beam reaches: local ones, and gs://, s3://, hdfs:// where installed.

In: paths. Out: what `keras_bert.common.files` promises for local ones: a file appears whole or not
at all.
A file that two workers make at once, because Beam ran a piece of work twice, has the same content
from both; either may come first.
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
    """Returns whether a path is one of this machine."""
    return "://" not in path


def find_input_files(patterns: str) -> list[dict[str, Any]]:
    """Lists the files that `--input_file` names.

    Args:
        patterns: a comma list of files, globs and folders. Local ones are read as
            `documents.find_input_files` does; the others by Beam, where a folder stands for every
            file below it and names with a leading dot are left out.

    Returns:
        file and bytes of each, each once.

    Raises:
        InputError: when an entry names no file.
    """
    if is_local(patterns):
        paths = documents.find_input_files(patterns)
        return [{"file": path, "bytes": os.path.getsize(path)} for path in paths]
    found: dict[str, int] = {}
    for entry in filter(None, (entry.strip() for entry in patterns.split(","))):
        if is_local(entry):
            found |= {path: os.path.getsize(path) for path in documents.find_input_files(entry)}
            continue
        matches = {}
        with contextlib.suppress(InputError):  # not a folder
            matches = _match(entry.rstrip("/") + "/**")
        matches = matches or _match(entry)
        visible = {path: size for path, size in sorted(matches.items()) if "/." not in path}
        if not visible:
            raise InputError(f"--input_file: no file at {entry!r}, expected a file, glob or folder")
        found |= visible
    return [{"file": path, "bytes": size} for path, size in found.items()]


def _match(pattern: str) -> dict[str, int]:
    try:
        (result,) = FileSystems.match([pattern])
    except (BeamIOError, ValueError) as error:
        raise InputError(f"{pattern}: cannot be listed ({error})") from None
    return {file.path: file.size_in_bytes for file in result.metadata_list}


def list_sizes(folder: str, ending: str) -> dict[str, int]:
    """Lists a folder's files by their ending.

    Args:
        folder: the folder, which may be absent.
        ending: how the names end.

    Returns:
        The names, sorted, and the files' sizes in bytes.
    """
    if is_local(folder):  # not as a pattern: its name may hold "["
        names = os.listdir(folder) if os.path.isdir(folder) else []
        names = [name for name in names if name.endswith(ending)]
        sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in names}
    else:
        found = _match(f"{folder}/*{ending}")
        sizes = {path.rsplit("/", 1)[-1]: size for path, size in found.items()}
    return dict(sorted(sizes.items()))


def exists(path: str) -> bool:
    """Returns whether there is a file or, where there are folders, a folder."""
    return FileSystems.exists(path)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading, its bytes as they are.

    Args:
        path: the file.

    Returns:
        A binary stream.

    Raises:
        OSError: when it cannot be opened.
    """
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def read_bytes(path: str) -> bytes:
    """Reads a file.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        InputError: when it cannot be read.
    """
    try:
        with open_file(path) as file:
            return file.read()
    except (OSError, BeamIOError) as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)})") from None


def read_json(path: str) -> Any:
    """Reads JSON.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        InputError: when it cannot be read or is no JSON.
    """
    try:
        return json.loads(read_bytes(path))
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from None


def sha256(path: str) -> str:
    """Computes a file's checksum.

    Args:
        path: the file.

    Returns:
        Its SHA-256 in hexadecimal.

    Raises:
        OSError: when it cannot be read.
    """
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: str, content: Any) -> None:
    """Writes JSON; see `write_bytes`."""
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file, whole or not at all.

    Args:
        path: the file.
        content: all of it.

    Raises:
        InputError: the place cannot be written.
    """
    partial = _partial(path)
    with _writing(path, partial):
        with FileSystems.create(partial, compression_type=CompressionTypes.UNCOMPRESSED) as file:
            file.write(content)
        _put_in_place(partial, path)


def upload(source: str, path: str) -> None:
    """Copies a local file, whole or not at all.

    Args:
        source: the local file.
        path: where to.

    Raises:
        InputError: the place cannot be written.
    """
    partial = _partial(path)
    with _writing(path, partial):
        with (
            open(source, "rb") as local,
            FileSystems.create(partial, compression_type=CompressionTypes.UNCOMPRESSED) as file,
        ):
            shutil.copyfileobj(local, file, 1 << 20)
        _put_in_place(partial, path)


def move(sources: list[str], destinations: list[str]) -> None:
    """Moves files.

    Args:
        sources: where they are.
        destinations: where to, one a source.

    Raises:
        InputError: when a place cannot be written.
    """
    if sources:
        with _writing(destinations[0], None):
            FileSystems.rename(sources, destinations)


def make_folder(path: str) -> None:
    """Makes a folder where there are folders.

    Args:
        path: the folder; it may exist.

    Raises:
        InputError: when it cannot be made.
    """
    with _writing(path, None):
        if not FileSystems.exists(path):
            FileSystems.mkdirs(path)


def remove_folder(path: str) -> None:
    """Removes a folder and what is in it, as far as that is possible."""
    if is_local(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(BeamIOError, OSError):
        FileSystems.delete([path + "/"])  # Object stores know a folder by its slash.


def _partial(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{uuid.uuid4().hex}.partial"


def _put_in_place(partial: str, path: str) -> None:
    try:
        FileSystems.rename([partial], [path])
    except BeamIOError:
        # Some file systems do not replace. What is there is the same, made by another worker.
        if not FileSystems.exists(path):
            raise
        remove(partial)


def remove(path: str) -> None:
    """Removes a file, as far as that is possible."""
    with contextlib.suppress(OSError, BeamIOError):
        if is_local(path):
            os.remove(path)
        else:
            FileSystems.delete([path])


@contextlib.contextmanager
def _writing(path: str, partial: str | None) -> Iterator[None]:
    """Turns what goes wrong into one line, and removes the beginnings of a file."""
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
