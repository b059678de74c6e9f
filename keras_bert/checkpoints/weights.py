"""Weights between a model and a safetensors file with Hugging Face's names.

In: a model and a file. Out: the model filled and a `LoadReport`, or the file written. Files of
float32, float16 and bfloat16 load, as the model's variables are float32; we write float32.
"""

import os
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_bert.checkpoints.names import (
    TIED_DECODER,
    current_spelling,
    hugging_face_name,
    is_transposed,
)
from keras_bert.errors import InputError


@dataclass(frozen=True)
class LoadReport:
    """What came of filling a model from a file; printed by programs.

    Attributes:
        source: the file.
        loaded: paths of the variables that the file filled.
        new: paths of the variables that the file lacks; they keep their fresh start.
        ignored: names in the file that the model has no place for.
    """

    source: str
    loaded: tuple[str, ...]
    new: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} weights loaded"]
        if self.new:
            parts.append(f"new, freshly initialised: {', '.join(self.new)}")
        if self.ignored:
            parts.append(f"in the file but not in the model: {', '.join(self.ignored)}")
        return "; ".join(parts)


def write_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Writes a model's weights as float32 under Hugging Face's names.

    Args:
        model: one of keras_bert.models, or the encoder.
        path: the safetensors file.
    """
    tensors = {}
    for variable in model.weights:
        value = keras.ops.convert_to_numpy(variable.value).astype(np.float32)
        value = value.T if is_transposed(variable.path) else value
        tensors[hugging_face_name(variable.path)] = np.ascontiguousarray(value)
    # transformers refuses a file that does not say which framework's layout it has.
    save_file(tensors, path, metadata={"format": "pt"})


def load_weights(model: keras.Model, path: str | os.PathLike) -> LoadReport:
    """Fills a model from a file; nothing is touched unless all of it fits.

    The encoder's weights must all be there. A head, or the pooler, may be missing as a whole and
    then keeps its fresh start.

    Args:
        model: one of keras_bert.models, or the encoder.
        path: the safetensors file.

    Returns:
        What was loaded, what is new, what was ignored.

    Raises:
        InputError: not a safetensors file, or weights are missing or misshapen; all are listed.
    """
    try:
        with safe_open(path, framework="np") as file:
            return _load(model, file, os.fspath(path))
    except (SafetensorError, OSError) as error:
        raise InputError(f"{os.fspath(path)}: not a whole safetensors file ({error})") from None


def _load(model: keras.Model, file: Any, source: str) -> LoadReport:
    names = {current_spelling(name): name for name in file.keys()}  # noqa: SIM118
    wanted = {variable.path: hugging_face_name(variable.path) for variable in model.weights}
    new = [path for path, name in wanted.items() if name not in names]
    held = {_part(path) for path in wanted if path not in new}
    problems = [f"{wanted[path]} is missing" for path in new if _part(path) in held | {"encoder"}]
    loaded = [variable for variable in model.weights if variable.path not in new]
    for variable in loaded:
        expected = tuple(variable.shape)[:: -1 if is_transposed(variable.path) else 1]
        found = tuple(file.get_slice(names[wanted[variable.path]]).get_shape())
        if found != expected:
            problems.append(
                f"{names[wanted[variable.path]]} has shape {list(found)}, expected {list(expected)}"
            )
    if problems:
        raise InputError(f"{source} does not fit the model: {'; '.join(problems)}")
    _check_tied(file, names, source, "masked_lm" in held)
    for variable in loaded:
        value = np.asarray(file.get_tensor(names[wanted[variable.path]])).astype(np.float32)
        variable.assign(value.T if is_transposed(variable.path) else value)
    used = {names[name] for name in wanted.values() if name in names} | {TIED_DECODER}
    return LoadReport(
        source=source,
        loaded=tuple(variable.path for variable in loaded),
        new=tuple(new),
        ignored=tuple(sorted(set(file.keys()) - used)),
    )


def _part(path: str) -> str:
    """Returns which part of the model a variable belongs to; parts load as a whole."""
    return "pooler" if path.startswith("encoder/pooler/") else path.split("/")[0]


def _check_tied(file: Any, names: dict[str, str], source: str, is_needed: bool) -> None:
    table = names.get("bert.embeddings.word_embeddings.weight")
    if is_needed and TIED_DECODER in names:
        decoder = file.get_tensor(names[TIED_DECODER])
        if not np.array_equal(decoder, file.get_tensor(table)):
            raise InputError(
                f"{source}: {TIED_DECODER} differs from the word embeddings; expected a masked-LM "
                "head that is tied to them"
            )
