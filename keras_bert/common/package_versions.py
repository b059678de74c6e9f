"""Finds the versions of installed packages."""

from collections.abc import Iterable
from importlib import metadata

import keras_bert


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Returns {package: version, or "not installed"} for keras_bert and `packages`."""
    found = {"keras_bert": keras_bert.__version__}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
