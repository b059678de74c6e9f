"""Reads the settings and results of the run that produced a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert.common.files import read_json, value_of

# The folders in which a run saves its weights.
_MODEL_FOLDERS = ("model", "best")


@dataclass(frozen=True)
class EarlierRun:
    """The run that produced a model; its settings and results are empty if there is none.

    `settings` are the flags in run.json. `results` are the metrics in results.json, which exists
    when the run has ended.
    """

    folder: Path
    settings: Mapping[str, Any]
    results: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path) -> "EarlierRun":
        """Reads run.json and results.json of a run, given its folder OUT, OUT/model or OUT/best.

        Other paths have empty settings and results. A file that cannot be read raises InputError.
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
        """Returns run_squad's `null_score_diff_threshold`: the flag, or else the result, or else 0.

        A value that is not a number raises InputError.
        """
        given = self.setting("null_score_diff_threshold", float, None)
        if given is not None:
            return given
        where = self.folder / "results.json"
        return value_of(where, self.results, "null_score_diff_threshold", float, 0.0)
