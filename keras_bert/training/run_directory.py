"""A run's folder: settings in; start, continue, refuse or nothing-to-do out.

`run.json` says what the run is (settings, versions); `results.json` appears when it is finished.
"""

import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from keras_bert.errors import InputError

PACKAGES = ("keras-bert", "tensorflow", "keras", "numpy")


def open_run(output_dir: Path, settings: Mapping[str, object]) -> bool:
    """Starts a run in its folder, or finds that it goes on there.

    Args:
        output_dir: the run's folder; made if absent.
        settings: everything that the outcome depends on, as JSON values.

    Returns:
        True if the run is finished already and there is nothing to do.

    Raises:
        InputError: the folder cannot be written, or holds a run with other settings.
    """
    run_file = output_dir / "run.json"
    settings = json.loads(json.dumps(settings))
    if run_file.exists():
        old = read_json(run_file).get("settings", {})
        names = sorted(set(old) | set(settings))
        changed = [
            f"{name} was {json.dumps(old.get(name))} and is now {json.dumps(settings.get(name))}"
            for name in names
            if old.get(name) != settings.get(name)
        ]
        if changed:
            raise InputError(
                f"{output_dir} holds a run with other settings: {'; '.join(changed)}; "
                "give the same settings to continue it, or another --output_dir"
            )
        return (output_dir / "results.json").exists()
    write_json(run_file, {"settings": settings, "versions": _versions()})
    return False


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes a JSON file beside its place, then renames it, so that it appears whole.

    Args:
        path: where to.
        content: JSON values by name.

    Raises:
        InputError: the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def read_json(path: Path) -> dict:
    """Reads a JSON object.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        InputError: the file is absent, or not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, not a JSON object")
    return content


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
