"""Reads and writes run.json, the record of a run.

settings        everything that affects the results; a resumed run must have the same settings
versions        package versions at the start of the run
resumed_with    other package versions with which the run was resumed, if any
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, write_json
from keras_bert.common.package_versions import package_versions

RUN_FILE = "run.json"
_PACKAGES = ("tensorflow", "jax", "keras", "numpy")


def check_same_settings(output_dir: Path, settings: Mapping[str, object]) -> None:
    """Raises an InputError with all differences if the run in a directory has other settings.

    A setting that the record does not have, because an earlier version of the package wrote it, was
    off.
    """
    run_file = output_dir / RUN_FILE
    settings = json.loads(json.dumps(settings))
    old = read_json(run_file).get("settings")
    if not isinstance(old, dict):
        raise InputError(f"{run_file}: has no settings; expected the record of a run")
    old, settings = flat(old), flat(settings)
    changed = [
        f"{name} was {json.dumps(old.get(name))} and is now {json.dumps(settings.get(name))}"
        for name in sorted(set(old) | set(settings))
        if old.get(name) != settings.get(name) and not (name not in old and settings[name] is False)
    ]
    if changed:
        raise InputError(
            f"{output_dir}: contains a run with other settings: {'; '.join(changed)}; expected the "
            "same settings to resume it, or another --output_dir"
        )


def flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Flattens nested settings: `log_steps` of `phase-1` becomes `phase-1.log_steps`."""
    named = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            named |= {f"{name}.{inner}": each for inner, each in flat(value).items()}
        else:
            named[name] = value
    return named


def write_record(output_dir: Path, settings: Mapping[str, object]) -> None:
    """Writes run.json for a new run, or updates "resumed_with" when a run resumes.

    If parts of the run used different versions of a package, a warning is logged.
    """
    path, now = output_dir / RUN_FILE, package_versions(_PACKAGES)
    if not path.exists():
        write_json(path, {"settings": settings, "versions": now})
        return
    record = read_json(path)
    later = record.get("resumed_with", [])
    used = [record.get("versions"), *(later if isinstance(later, list) else [])]
    used = [versions for versions in used if isinstance(versions, dict)]
    if used:
        if _differences([*used, now]) and now not in used:
            write_json(path, record | {"resumed_with": [*used[1:], now]})
        _warn_of_versions(output_dir, [*used, now])


def _warn_of_versions(output_dir: Path, used: Sequence[Mapping[str, str]]) -> None:
    if different := _differences(used):
        logging.warning(
            "%s: parts of this run used different versions of packages, from the first to the "
            "last: %s; the results may differ from those of a run with one version. Install the "
            "first version of each package to get the same results as an uninterrupted run",
            output_dir,
            ", ".join(f"{name} {' and '.join(found)}" for name, found in different.items()),
        )


def _differences(used: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Returns {package: versions in the order of their use} of packages with several versions."""
    names = [
        "keras_bert",
        *(name for name in _PACKAGES if name != "jax" or keras.backend.backend() == "jax"),
    ]
    found = {
        name: list(dict.fromkeys(str(versions[name]) for versions in used if name in versions))
        for name in names
    }
    return {name: versions for name, versions in found.items() if len(versions) > 1}
