"""Stores the results of finished units, one JSON file per arm.

    {"arm": "mini-mlm", "units": {"MRPC/seed-0": {"settings": {...}, "figures": {...},
                                                  "seconds": 61.2, "cpu_seconds": 80.4}, ...}}

Files are replaced as a whole, so a kill leaves either the file before a unit or the file after it.
A file that cannot be read is an error, never an empty file, since its results took hours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ablation.plan import Plan
from ablation.units import Unit, settings_of
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json


@dataclass(frozen=True)
class Result:
    """The result of a unit.

    Attributes:
        figures: {name: value}; for fine-tuning, "last" has the development scores of the last
            epoch, "best" those of the best one, and "test" those of the test set, if there is one.
        seconds: the wall-clock time.
        cpu_seconds: the CPU time of all threads.
    """

    figures: Mapping[str, object]
    seconds: float
    cpu_seconds: float


class Results:
    """The results in a folder, for one plan.

    Attributes:
        folder: the folder.
        study: the plan.
    """

    def __init__(self, folder: Path, study: Plan):
        self.folder, self.study = Path(folder), study
        self._units: dict[str, dict[str, dict]] = {}  # {arm: {key: entry}}

    def path(self, arm: str) -> Path:
        """Returns the file of an arm."""
        return self.folder / f"{arm}.json"

    def get(self, unit: Unit) -> Result | None:
        """Returns the result of a unit; None if it is missing.

        Raises:
            InputError: the file is damaged, or has a result of other settings.
        """
        entry = self._entries(unit.arm.name).get(unit.key)
        if entry is None:
            return None
        where = f"{self.path(unit.arm.name)}: {unit.key}"
        names = ("settings", "figures", "seconds", "cpu_seconds")
        if not isinstance(entry, dict) or any(name not in entry for name in names):
            raise InputError(
                f"{where}: expected an object with {', '.join(names)}. Restore the file from "
                "version control, or delete the entry to compute it again"
            )
        settings = settings_of(unit, self.study)
        if entry["settings"] != settings:
            keys = sorted(entry["settings"].keys() | settings.keys())
            found, expected = (
                {
                    key: values.get(key)
                    for key in keys
                    if entry["settings"].get(key) != settings.get(key)
                }
                for values in (entry["settings"], settings)
            )
            # The scores in the file are of the pre-trained model, so that they are outdated too.
            outdated = "the entry" if unit.task else "the file"
            raise InputError(
                f"{where}: was computed with {found}; expected {expected}. Use another "
                f"--results_dir, or delete {outdated} to compute it again"
            )
        return Result(entry["figures"], entry["seconds"], entry["cpu_seconds"])

    def seeds(self, unit: Unit) -> list[int]:
        """Returns the seeds of all results that differ from a unit only in their seed."""
        prefix = unit.key.removesuffix(f"{unit.seed}")
        found = [
            key.removeprefix(prefix)
            for key in self._entries(unit.arm.name)
            if key.startswith(prefix)
        ]
        return sorted(int(seed) for seed in found if seed.isdecimal())

    def missing(self, units: Iterable[Unit]) -> list[Unit]:
        """Returns the units that have no result."""
        return [unit for unit in units if self.get(unit) is None]

    def record(self, unit: Unit, result: Result) -> None:
        """Adds the result of a unit to the file of its arm."""
        name = unit.arm.name
        self._units.pop(name, None)  # Another process may have added results since.
        entry = {"settings": settings_of(unit, self.study), **asdict(result)}
        units = {**self._entries(name), unit.key: entry}
        write_json(self.path(name), {"arm": name, "units": units})
        self._units[name] = units

    def _entries(self, arm: str) -> dict[str, dict]:
        if arm not in self._units:
            path = self.path(arm)
            content = read_json(path) if path.exists() else {"arm": arm, "units": {}}
            if content.get("arm") != arm or not isinstance(content.get("units"), dict):
                raise InputError(
                    f"{path}: is not a file of results of {arm}; expected one. Restore it from "
                    "version control, or delete it to compute all its units again"
                )
            self._units[arm] = content["units"]
        return self._units[arm]
