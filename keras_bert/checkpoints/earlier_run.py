"""Reads the settings and results of the run that produced a model.

Importing this module does not import Keras, because programs read flags before they do.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert.files import read_json, value_of

CONFIG = "config.json"
# The key of config.json under which `save_pretrained` and runs keep a task's settings.
SETTINGS_KEY = "keras_bert"
EXAMPLES = "examples.json"  # the training texts that an export of the model shows
# The folders in which a run saves its weights.
_MODEL_FOLDERS = ("model", "best")


class EarlierRun:
    """The run that produced a model; settings and results are empty if there is no such run.

    Args:
        path: the folder OUT of a run, OUT/model, OUT/best, or another model.

    Attributes:
        settings: the flags in run.json.
        results: the metrics in results.json; empty if the run is not finished.
        shown: up to three short training texts, each a list with one or two strings.
    """

    def __init__(self, path: Path):
        self.folder = path = path.absolute()
        is_of_a_run = (path / "run.json").is_file()
        if not is_of_a_run:
            self.folder, is_of_a_run = path.parent, path.name in _MODEL_FOLDERS

        def read(name: str) -> Mapping[str, Any]:
            file = self.folder / name
            return read_json(file) if is_of_a_run and file.is_file() else {}

        settings = read("run.json").get("settings")
        self.settings: Mapping[str, Any] = settings if isinstance(settings, dict) else {}
        self.results = read("results.json")
        self.shown: Sequence[Sequence[str]] = read(EXAMPLES).get("texts", ())

    def setting(self, name: str, kind: type, default: Any) -> Any:
        """Returns the value of a flag of the run, or `default` if the run has none."""
        return value_of(self.folder / "run.json", self.settings, name, kind, default)

    def recorded(self, model: Path) -> list[tuple[Path, Mapping[str, Any]]]:
        """Reads the settings of the model directory or run `model`, and the files that have them.

        The settings that are saved with the model come first, because the model may have been
        replaced since the run.
        """
        files = (model / CONFIG, self.folder / "model" / CONFIG)
        saved = [(file, read_json(file).get(SETTINGS_KEY)) for file in files if file.is_file()]
        saved = [(file, settings) for file, settings in saved if isinstance(settings, Mapping)]
        return [*saved, (self.folder / "run.json", self.settings)]

    def threshold(self) -> float:
        """Returns `null_score_diff_threshold` of a SQuAD run: the flag, else the result, else 0."""
        name = "null_score_diff_threshold"
        result = value_of(self.folder / "results.json", self.results, name, float, 0.0)
        return self.setting(name, float, result)
