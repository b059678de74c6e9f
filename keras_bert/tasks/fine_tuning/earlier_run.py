"""Reads the settings and results of a finished run from OUT/run.json and OUT/results.json.

The path may be OUT itself or one of its models, OUT/model and OUT/best.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert.common.files import read_json, value_of

# The folders in which a run saves its weights.
_MODEL_FOLDERS = ("model", "best")


@dataclass(frozen=True)
class EarlierRun:
    """The run that produced a model.

    Attributes:
        folder: the run's folder.
        settings: its flags, from run.json; empty without a run.
        results: its metrics, from results.json; empty without a run or before the run ends.
    """

    folder: Path
    settings: Mapping[str, Any]
    results: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path) -> "EarlierRun":
        """Reads the files of a run's folder, or of the run that contains the given model/ or best/.

        Other paths give empty settings and results. A file that cannot be read raises InputError.
        """
        folder = path = path.absolute()
        is_of_a_run = (path / "run.json").is_file()
        if not is_of_a_run:
            folder, is_of_a_run = path.parent, path.name in _MODEL_FOLDERS

        def read(name: str) -> Mapping[str, Any]:
            return read_json(folder / name) if is_of_a_run and (folder / name).is_file() else {}

        settings = read("run.json").get("settings")
        return cls(folder, settings if isinstance(settings, dict) else {}, read("results.json"))

    def setting(self, name: str, kind: type, default: Any) -> Any:
        """Returns a flag of the run, or `default`; raises InputError if its type is not `kind`."""
        return value_of(self.folder / "run.json", self.settings, name, kind, default)

    def threshold(self) -> float:
        """Returns run_squad's `null_score_diff_threshold`.

        This is the run's flag if it was given, otherwise the value in results.json, 0 by default.
        A value of another type raises InputError.
        """
        given = self.setting("null_score_diff_threshold", float, None)
        if given is not None:
            return given
        where = self.folder / "results.json"
        return value_of(where, self.results, "null_score_diff_threshold", float, 0.0)
