"""Reads the settings and results of a finished run.

OUT/run.json and OUT/results.json, of OUT or the models in it, OUT/model and OUT/best.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert.common.files import read_json, value_of

# A run keeps its weights under these names.
_OF_A_RUN = ("model", "best")


@dataclass(frozen=True)
class EarlierRun:
    """What the run that a model came from says of itself.

    Attributes:
        folder: the run's.
        settings: its flags, from run.json; empty without a run.
        results: its figures, from results.json; empty without a run, and before its end.
    """

    folder: Path
    settings: Mapping[str, Any]
    results: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path) -> "EarlierRun":
        """Reads the files of a run's folder, or of the one that holds a run's model/ or best/.

        Args:
            path: what `open_checkpoint` opens, of a run or not.

        Raises:
            InputError: a file that cannot be read.
        """
        folder = path = path.absolute()
        is_of_a_run = (path / "run.json").is_file()
        if not is_of_a_run:
            folder, is_of_a_run = path.parent, path.name in _OF_A_RUN

        def read(name: str) -> Mapping[str, Any]:
            return read_json(folder / name) if is_of_a_run and (folder / name).is_file() else {}

        settings = read("run.json").get("settings")
        return cls(folder, settings if isinstance(settings, dict) else {}, read("results.json"))

    def setting(self, name: str, kind: type, default: Any) -> Any:
        """Returns a flag of the run, or the default where there is none.

        Args:
            name: the flag's.
            kind: int, float, bool or str.
            default: of any kind.

        Raises:
            InputError: it is of another kind.
        """
        return value_of(self.folder / "run.json", self.settings, name, kind, default)

    def threshold(self) -> float:
        """Returns the null odds above which run_squad answers other questions by "".

        Raises:
            InputError: results.json has something else there.
        """
        given = self.setting("null_score_diff_threshold", float, None)
        if given is not None:
            return given
        where = self.folder / "results.json"
        return value_of(where, self.results, "null_score_diff_threshold", float, 0.0)
