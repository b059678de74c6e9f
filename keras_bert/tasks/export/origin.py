"""The files beside a model -> how it was trained, and how sentence-transformers uses it.

OUT/run.json, OUT/results.json of OUT/model: the flags of the run and its figures. modules.json and
sentence_bert_config.json in the model's own folder: length, pooling and normalization.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import logging

from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.tasks.classification import glue

# A run keeps its weights under these names.
_OF_A_RUN = ("model", "best")

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}

# sentence-transformers' poolings that are served -> the older key of each.
_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}


@dataclass(frozen=True)
class Run:
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
    def of(cls, model_dir: Path) -> "Run":
        """Reads the files of the folder that holds a run's model/ or best/.

        Args:
            model_dir: a model, of a run or not.

        Raises:
            InputError: a file that cannot be read.
        """
        model_dir = model_dir.absolute()
        folder, is_of_a_run = model_dir.parent, model_dir.name in _OF_A_RUN

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
        return _checked(self.folder / "run.json", self.settings, name, kind, default)

    def threshold(self) -> float:
        """Returns the null odds above which run_squad answers other questions by "".

        Raises:
            InputError: results.json has something else there.
        """
        given = self.setting("null_score_diff_threshold", float, None)
        if given is not None:
            return given
        where = self.folder / "results.json"
        return _checked(where, self.results, "null_score_diff_threshold", float, 0.0)

    def is_of_pairs(self) -> bool:
        """Tells whether the run's classifier was trained on pairs of texts.

        Raises:
            InputError: run.json names a task that there is not.
        """
        name = self.setting("task_name", str, "")
        if name and name.lower() != "custom":
            return len(glue.find_task(name).text_columns) == 2
        return bool(self.setting("text_pair_column", str, ""))


@dataclass(frozen=True)
class SentenceTransformer:
    """How sentence-transformers makes a text's vector by a model.

    Attributes:
        max_seq_length: pieces that it reads; None where no file says it.
        pooling: the vector that it takes, `cls` or `mean`; None where no file says it, or another.
        normalize: whether it divides the vector by its length.
    """

    max_seq_length: int | None = None
    pooling: str | None = None
    normalize: bool = False

    @classmethod
    def of(cls, model_dir: Path) -> "SentenceTransformer":
        """Reads sentence-transformers' files of a model directory.

        Args:
            model_dir: the directory, of sentence-transformers or not.

        Raises:
            InputError: a file that cannot be read.
        """
        file = model_dir / "sentence_bert_config.json"
        said = read_json(file) if file.is_file() else {}
        length = _checked(file, said, "max_seq_length", int, None)
        modules = _modules(model_dir / "modules.json")
        kinds = [kind for kind, _ in modules]
        poolings = [
            _poolings(model_dir / path / "config.json") for k, path in modules if k == "Pooling"
        ]
        others = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
        pooling = None
        if others or len(poolings) > 1:
            logging.warning("%s: %s is not exported", model_dir, ", ".join(others) or "Pooling")
        elif poolings and len(poolings[0]) == 1 and poolings[0][0] in _POOLINGS:
            pooling = poolings[0][0]
        elif poolings:
            logging.warning("%s: pooling %s is not exported", model_dir, ", ".join(poolings[0]))
        return cls(length, pooling, "Normalize" in kinds)


def _checked(where: Path, values: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    """Returns a value of a file, None and absent ones as the default."""
    value = values.get(name)
    if value is None:
        return default
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{where}: {name} is {value!r}; expected {_KINDS[kind]}")
    return value


def _modules(file: Path) -> list[tuple[str, str]]:
    """Returns the kind and the folder of each module that modules.json lists, none without it."""
    if not file.is_file():
        return []
    try:
        return [
            (module["type"].rpartition(".")[2], module["path"])
            for module in json.loads(file.read_text(encoding="utf-8"))
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise InputError(
            f"{file}: cannot be read; expected sentence-transformers' list of modules, each with "
            "its type and path"
        ) from None


def _poolings(file: Path) -> list[str]:
    """Returns the names of the poolings that a Pooling module joins."""
    said = read_json(file)
    named = said.get("pooling_mode")
    if named is not None:
        return [str(name) for name in (named if isinstance(named, list) else [named])]
    older = {key: name for name, key in _POOLINGS.items()}
    on = [key for key, value in said.items() if key.startswith("pooling_mode_") and value is True]
    return [older.get(key, key) for key in on] or ["mean"]
