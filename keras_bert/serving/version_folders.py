"""Finds and checks the numbered versions in a model's folder.

A version is a number of TensorFlow Serving's, a signed int64 that is not negative. `DIR/1` and
`DIR/01` are the same version, here that of the shorter name.
"""

from pathlib import Path

from keras_bert.common.errors import InputError

_LARGEST = 2**63 - 1


def version_number(name: str) -> int | None:
    """Reads the number of a version.

    Args:
        name: a folder's name, or what a client asks for.

    Returns:
        The number; None if it is none, or too large.
    """
    if not (name.isascii() and name.isdigit()):
        return None
    digits = name.lstrip("0") or "0"
    # By its length first: Python reads no number of thousands of digits.
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        return None
    return int(digits)


def find_versions(folder: Path, file: str = "") -> dict[int, Path]:
    """Finds the versions in a model's folder.

    Args:
        folder: DIR; it need not be there.
        file: only those that hold a file of this name; "" for whatever has a version's name.

    Returns:
        Number -> DIR/NUMBER.

    Raises:
        OSError: the folder cannot be read.
    """
    if not folder.is_dir():
        return {}
    # Longer names first: of two that are the same number, the shorter counts.
    paths = sorted(folder.iterdir(), key=lambda path: len(path.name), reverse=True)
    numbered = ((version_number(path.name), path) for path in paths)
    return {
        number: path
        for number, path in numbered
        if number is not None and (not file or (path / file).is_file())
    }


def next_version(folder: Path) -> int:
    """Returns the number of the next version, 1 for the first.

    Args:
        folder: DIR; it need not be there.
    """
    return 1 + max(find_versions(folder), default=0)


def check_version(export_dir: Path) -> None:
    """Refuses a folder that TensorFlow Serving would not take, or a version that is there.

    Args:
        export_dir: DIR/<version>.

    Raises:
        InputError: its name is no version's, that version is there already, or the folder above
            cannot be read.
    """
    number = version_number(export_dir.name)
    if number is None:
        raise InputError(
            f"--export_dir={export_dir}: expected a numbered version, at most {_LARGEST}, "
            f"such as {export_dir / '1'}"
        )
    try:
        there = find_versions(export_dir.parent).get(number)
    except OSError as error:
        raise InputError(f"--export_dir={export_dir}: {error.strerror}") from error
    if there is not None:
        raise InputError(
            f"--export_dir={export_dir}: {there} is there already; expected a new version, such "
            f"as {export_dir.with_name(str(next_version(export_dir.parent)))}"
        )
