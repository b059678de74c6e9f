"""Names the extras of optional packages, and checks that the packages are installed."""

import importlib.util
from collections.abc import Sequence

from keras_bert.common.errors import InputError

# Package -> the extra in setup.cfg that installs it.
_EXTRAS = {"onnx": "onnx", "onnxruntime": "onnx", "openvino": "openvino"}


def is_installed(package: str) -> bool:
    """Returns whether a package is installed, without importing it."""
    return importlib.util.find_spec(package) is not None


def install_command(package: str) -> str:
    """Returns the command that installs a package."""
    return f"pip install 'keras-bert-pipeline[{_EXTRAS[package]}]'"


def require_packages(packages: Sequence[str], user: str) -> None:
    """Raises an InputError if a package is not installed; `user` names what needs the packages."""
    for package in packages:
        if not is_installed(package):
            raise InputError(
                f"{user}: the package {package} is not installed; install it with "
                f"{install_command(package)}"
            )
