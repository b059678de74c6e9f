"""Reads and writes the files of sentence-transformers: length, pooling, normalization."""

import json
from dataclasses import dataclass
from pathlib import Path

from absl import logging

from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, value_of, write_json

MODULES = "modules.json"
LENGTH = "sentence_bert_config.json"
_POOLING_FOLDER, _NORMALIZE_FOLDER = "1_Pooling", "2_Normalize"
# The names that `SentenceTransformer.write` creates in a model directory.
SENTENCE_TRANSFORMER_FILES = (MODULES, LENGTH, _POOLING_FOLDER, _NORMALIZE_FOLDER)

# Supported pooling -> its key in older sentence-transformers files.
_POOLINGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}


@dataclass(frozen=True)
class SentenceTransformer:
    """The settings with which sentence-transformers computes the vector of a text.

    Attributes:
        max_seq_length: maximum number of tokens in a text; None if no file specifies it.
        pooling: `cls` or `mean`; None if it is not specified or not supported.
        normalize: whether vectors are scaled to length 1.
    """

    max_seq_length: int | None = None
    pooling: str | None = None
    normalize: bool = False

    @classmethod
    def of(cls, model_dir: Path) -> "SentenceTransformer":
        """Reads modules.json and sentence_bert_config.json in a model directory, if they exist."""
        file = model_dir / LENGTH
        config = read_json(file) if file.is_file() else {}
        length = value_of(file, config, "max_seq_length", int, None)
        modules = _modules(model_dir / MODULES)
        kinds = [kind for kind, _ in modules]
        poolings = [
            _poolings(model_dir / path / "config.json") for k, path in modules if k == "Pooling"
        ]
        others = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
        pooling = None
        if others or len(poolings) > 1:
            unsupported = ", ".join(others) or "more than one Pooling"
            logging.warning("%s: skipped unsupported modules: %s", model_dir, unsupported)
        elif poolings and len(poolings[0]) == 1 and poolings[0][0] in _POOLINGS:
            pooling = poolings[0][0]
        elif poolings:
            logging.warning(
                "%s: skipped unsupported pooling: %s", model_dir, ", ".join(poolings[0])
            )
        return cls(length, pooling, "Normalize" in kinds)

    def write(self, folder: Path, width: int) -> None:
        """Writes the files into a model directory; `width` is the size of the vectors.

        `max_seq_length` and `pooling` must not be None.
        """
        modules = [("", "Transformer"), (_POOLING_FOLDER, "Pooling")]
        modules += [(_NORMALIZE_FOLDER, "Normalize")] * self.normalize
        listed = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ]
        for path, _ in modules[1:]:
            (folder / path).mkdir()
        modes = {key: name == self.pooling for name, key in _POOLINGS.items()}
        pooling = {"word_embedding_dimension": width, **modes}
        write_json(folder / _POOLING_FOLDER / "config.json", pooling)
        write_json(folder / LENGTH, {"max_seq_length": self.max_seq_length, "do_lower_case": False})
        write_json(folder / MODULES, listed)


def _modules(file: Path) -> list[tuple[str, str]]:
    """Returns the type and folder of each module in modules.json; [] without the file."""
    if not file.is_file():
        return []
    try:
        modules = [
            (module["type"].rpartition(".")[2], str(module["path"]))
            for module in json.loads(file.read_text(encoding="utf-8-sig"))
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise InputError(
            f"{file}: cannot be read; expected the list of modules of sentence-transformers, "
            "each with a type and a path"
        ) from None
    for _, path in modules:
        if Path(path).is_absolute() or ".." in Path(path).parts:
            raise InputError(f"{file}: the path {path!r}; expected a folder in that of the model")
    return modules


def _poolings(file: Path) -> list[str]:
    """Returns the poolings that a Pooling module concatenates, from its config.json."""
    config = read_json(file)
    modes = config.get("pooling_mode")
    if modes is not None:
        return [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    older = {key: name for name, key in _POOLINGS.items()}
    enabled = [
        key for key, value in config.items() if key.startswith("pooling_mode_") and value is True
    ]
    return [older.get(key, key) for key in enabled] or ["mean"]
