"""Reads and writes weights in safetensors files with Hugging Face's names.

A folder contains either `model.safetensors`, or `model.safetensors.index.json` and the shards that
it lists. Weights are always written to a single `model.safetensors`.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_bert.checkpoints.names import (
    TIED_DECODER,
    current_name,
    hugging_face_name,
    is_transposed,
)
from keras_bert.checkpoints.weights import Layout, StoredWeights, stored_arrays
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def _transpose(path: str, value: np.ndarray) -> np.ndarray:
    return value.T if is_transposed(path) else value


LAYOUT = Layout(
    name=hugging_face_name,
    store=_transpose,
    restore=_transpose,
    encoder_prefix="bert.",
    buffers=frozenset({"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}),
    tied_decoder=TIED_DECODER,
)


def write_safetensors(folder: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Writes weights, {variable path: array}, as float32 under Hugging Face's names."""
    path = folder / WEIGHTS
    path.touch()
    mode = path.stat().st_mode
    # transformers rejects a file whose metadata do not name the framework.
    save_file(stored_arrays(weights, LAYOUT), path, metadata={"format": "pt"})
    path.chmod(mode)  # save_file makes the file readable only by its owner.


@contextlib.contextmanager
def open_safetensors(folder: Path) -> Iterator[StoredWeights]:
    """Opens the weights of a folder; they can be read while the context is open.

    Raises:
        InputError: a file is missing or damaged, or the index does not match the shards.
    """
    source = folder / (WEIGHTS if (folder / WEIGHTS).is_file() else INDEX)
    with contextlib.ExitStack() as stack:
        files, shards = {}, {}
        for path in [source] if source.name == WEIGHTS else _shards(source):
            try:
                file = stack.enter_context(safe_open(path, framework="np"))
            except (SafetensorError, OSError) as error:
                raise InputError(f"{path}: not a valid safetensors file ({error})") from None
            for name in file.keys():  # noqa: SIM118
                if name in shards:
                    raise InputError(
                        f"{source}: {shards[name]} and {path.name} both contain {name}; expected "
                        "each weight in one file"
                    )
                files[name], shards[name] = file, path.name
        if source.name == INDEX:
            _check_index(source, set(files))
        names_in_file = _current_names(source, files)

        def read(name: str) -> np.ndarray:
            old = names_in_file[name]
            try:
                return files[old].get_tensor(old)
            except (AttributeError, TypeError):  # NumPy has no 8-bit floats.
                kind = files[old].get_slice(old).get_dtype()
                raise stored.wrong_type(name, kind) from None

        stored = StoredWeights(
            source=str(source),
            layout=LAYOUT,
            shapes={
                name: tuple(files[old].get_slice(old).get_shape())
                for name, old in names_in_file.items()
            },
            read=read,
            names_in_file=names_in_file,
        )
        yield stored


def _current_names(source: Path, files: Mapping[str, safe_open]) -> dict[str, str]:
    """Returns {current name: name in the file}; the names in older files may differ.

    Files of transformers may contain a shared weight under both of its names; equal copies count as
    one weight.
    """
    names_in_file: dict[str, str] = {}
    for name, file in files.items():
        first = names_in_file.setdefault(current_name(name), name)
        if first == name:
            continue
        if not _are_equal(files[first].get_slice(first), file.get_slice(name)):
            raise InputError(
                f"{source}: {first} and {name} are two names of one weight, with different values; "
                "expected one of them"
            )
    return names_in_file


def _are_equal(a: Any, b: Any) -> bool:
    """Returns whether two slices of safetensors have equal values."""
    try:
        return a.get_dtype() == b.get_dtype() and np.array_equal(a[:], b[:])
    except (AttributeError, TypeError):  # NumPy has no 8-bit floats.
        return False


def _shards(index: Path) -> list[Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in names.values()
    ):
        raise InputError(
            f"{index}: expected a weight_map from weight names to file names in the same folder"
        )
    shards = [index.parent / name for name in sorted(set(names.values()))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise InputError(
            f"{index}: lists missing files: {', '.join(missing)}; expected all shards in the same "
            "folder"
        )
    return shards


def _check_index(index: Path, found: set[str]) -> None:
    listed = set(read_json(index)["weight_map"])
    if listed != found:
        raise InputError(
            f"{index}: weight_map and the files contain different weights: "
            f"{', '.join(sorted(listed ^ found))}; expected the same names in both"
        )
