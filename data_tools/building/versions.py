"""Finds and compares the versions of the packages that determine the bytes of a dataset."""

import functools
import platform
import socket
from collections.abc import Mapping

from data_tools.corpus.documents import FORMAT_PACKAGES
from keras_bert.common.errors import InputError
from keras_bert.common.package_versions import package_versions

# These packages determine the random numbers, the tokenizer's Unicode tables and the rules of the
# sentence splitter.
_PACKAGES = ("numpy", "sentencex", "tensorflow", "tensorflow-text")


@functools.lru_cache(maxsize=1)
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    return {"python": platform.python_version()} | package_versions(packages)


def build_versions(input_format: str) -> dict[str, str]:
    """Returns {name: version} of Python and the packages in this process.

    The manifest stores it as made_with. `input_format` is the format of the corpus.
    """
    return dict(_versions(_PACKAGES + FORMAT_PACKAGES.get(input_format, ())))


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns (name, old version, new version) of the packages whose versions differ."""
    both = [
        (name, old.get(name, "unknown"), new.get(name, "unknown"))
        for name in sorted(old.keys() | new.keys())
    ]
    return [entry for entry in both if entry[1] != entry[2]]


def check_worker(expected: Mapping[str, str]) -> None:
    """Checks that this process, a worker, has the package versions of the launching machine.

    Raises:
        InputError: if a version differs; the message lists the differences.
    """
    packages = tuple(name for name in expected if name not in ("python", "keras_bert"))
    differing = differences(expected, _versions(packages))
    if differing:
        found = ", ".join(f"{name} {here}" for name, _, here in differing)
        wanted = ", ".join(f"{name} {there}" for name, there, _ in differing)
        raise InputError(
            f"worker on {socket.gethostname()}: has {found}; expected {wanted}, as on the "
            "launching machine, because the versions determine the bytes of the dataset"
        )
