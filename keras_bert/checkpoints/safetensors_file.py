"""Reads and writes weights in safetensors files with Hugging Face's names.

A folder contains either `model.safetensors`, or `model.safetensors.index.json` and the shards that
it lists. Weights are always written to a single `model.safetensors`.

The variable paths of this library follow Google's checkpoints. Kernels are [in, out]; Hugging Face
stores the transpose.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_bert.checkpoints.weights import Layout, StoredWeights
from keras_bert.errors import InputError
from keras_bert.files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

# Layer names here and in Hugging Face; {} is the number of the block.
_LAYERS = (
    ("encoder/embeddings", "bert.embeddings"),
    ("encoder/layer_{}", "bert.encoder.layer.{}"),
    ("encoder/pooler", "bert.pooler"),
    ("encoder/dense_{}", "dense.{}"),  # of sentence-transformers, in files of their own
    ("masked_lm/dense", "cls.predictions.transform.dense"),
    ("masked_lm/LayerNorm", "cls.predictions.transform.LayerNorm"),
    ("masked_lm", "cls.predictions"),
    ("next_sentence", "cls.seq_relationship"),
    ("classifier", "classifier"),
    ("span", "qa_outputs"),
)

# The last part of a path, here and in Hugging Face.
_VARIABLES = {
    "word_embeddings": "word_embeddings.weight",
    "position_embeddings": "position_embeddings.weight",
    "token_type_embeddings": "token_type_embeddings.weight",
    "gamma": "weight",
    "beta": "bias",
    "kernel": "weight",
    "bias": "bias",
    "output_bias": "bias",
}

# Older names: files of 2018 and 2019 name the variables of LayerNorm as Google does, and some files
# contain the masked-LM head's output bias only under the decoder's name.
_OLDER_NAMES = (
    (re.compile(r"LayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"LayerNorm\.beta$"), "LayerNorm.bias"),
    (re.compile(r"^cls\.predictions\.decoder\.bias$"), "cls.predictions.bias"),
)

# In a file of a model without heads, the encoder's names have no prefix.
_WITHOUT_PREFIX = re.compile(r"^(embeddings|encoder|pooler)\.")


def hugging_face_name(path: str) -> str:
    """Converts a variable path of this library to Hugging Face's name.

    `encoder/layer_0/output/dense/kernel` becomes `bert.encoder.layer.0.output.dense.weight`. Raises
    a KeyError if no model of this library has such a variable.
    """
    layer, _, variable = path.rpartition("/")
    for ours, theirs in _LAYERS:
        pattern = re.escape(ours).replace(r"\{\}", r"(\d+)") + r"(?=/|$)"
        match = re.match(pattern, layer)
        if match:
            parts = [theirs.format(*match.groups()), *layer[match.end() :].split("/")[1:]]
            return ".".join([*parts, _VARIABLES[variable]])
    raise KeyError(path)


def current_name(name: str) -> str:
    """Converts an older weight name, or one without the prefix "bert.", to the current name."""
    for pattern, current in _OLDER_NAMES:
        name = pattern.sub(current, name)
    return "bert." + name if _WITHOUT_PREFIX.match(name) else name


def _transpose(path: str, value: np.ndarray) -> np.ndarray:
    return value.T if path.endswith("/kernel") else value


LAYOUT = Layout(
    name=hugging_face_name,
    store=_transpose,
    restore=_transpose,
    encoder_prefix="bert.",
    buffers=frozenset({"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"}),
    tied_decoder="cls.predictions.decoder.weight",
)


def write_safetensors(folder: Path, weights: Mapping[str, np.ndarray]) -> None:
    """Writes weights, {variable path: array}, as float32 under Hugging Face's names."""
    file = folder / WEIGHTS
    file.touch()
    mode = file.stat().st_mode
    # transformers rejects a file whose metadata do not name the framework.
    arrays = {
        hugging_face_name(path): np.ascontiguousarray(_transpose(path, value))
        for path, value in weights.items()
    }
    save_file(arrays, file, metadata={"format": "pt"})
    file.chmod(mode)  # save_file makes the file readable only by its owner.


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
