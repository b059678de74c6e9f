"""Reads and writes Hugging Face model directories, which transformers can open too.

    directory = open_model_directory("run/model")
    model = BertPretrainer(directory.config)
    print(directory.load_into(model))

The weights are in `model.safetensors`, or in `model.safetensors.index.json` and the shards that it
lists; they are always written to a single file. Variable paths follow Google's checkpoints. Kernels
are [in, out]; Hugging Face stores the transpose. Pickle files are never read.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_bert.checkpoints.checkpoint import Checkpoint, ModelDescription
from keras_bert.checkpoints.sentence_transformers import (
    SENTENCE_TRANSFORMER_FILES,
    lower_cases,
    read_modules,
    transformer_folder,
)
from keras_bert.checkpoints.tokenizer_files import (
    CONFIG,
    FAST_TOKENIZER,
    TOKENIZER,
    VOCAB,
    read_tokenizer,
    write_tokenizer,
)
from keras_bert.checkpoints.weights import WEIGHTS, Layout, StoredWeights, weights_of
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, check_schema, read_json, write_bytes, write_json
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import fit_vocab

INDEX = "model.safetensors.index.json"
# Other names of Hugging Face for the same activations; the results are equal up to rounding.
_ACTIVATIONS_READ = {
    "gelu_python": "gelu",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
}
_ACTIVATIONS_WRITTEN = {"gelu_tanh": "gelu_new"}
MODEL_CARD = "README.md"
MODEL_FILES = (
    *(CONFIG, WEIGHTS, VOCAB, TOKENIZER, FAST_TOKENIZER, MODEL_CARD),
    *SENTENCE_TRANSFORMER_FILES,
)


def open_model_directory(path: str | os.PathLike) -> Checkpoint:
    """Opens a model directory without reading its weights.

    If modules.json names another folder for the encoder, its files are read there.

    Raises:
        InputError: the directory does not exist, a file is missing or cannot be read, or the
            vocabulary does not match the config.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise InputError(
            f"{directory}: no such directory; expected one with {CONFIG} and {WEIGHTS}"
        )
    path = transformer_folder(directory)
    if not (path / CONFIG).is_file():
        raise InputError(f"{path}: has no {CONFIG}; expected a model directory")
    if not (path / WEIGHTS).is_file() and not (path / INDEX).is_file():
        raise InputError(
            f"{path}: has no {WEIGHTS}; expected a model directory" + _pickle_hint(path)
        )
    settings = read_json(path / CONFIG)
    _check_settings(path / CONFIG, settings)
    config = _read_config(path / CONFIG, settings)
    vocab, tokenizer, mismatch = read_tokenizer(path, settings)
    if vocab:
        vocab = fit_vocab(vocab, config.vocab_size, path / VOCAB)
    if lower_cases(path) and not tokenizer.do_lower_case:
        accents = tokenizer.strips_accents
        tokenizer = replace(tokenizer, do_lower_case=True, strip_accents=accents)
    return Checkpoint(
        path=directory,
        kind="a Hugging Face model directory",
        config=config,
        vocab=vocab,
        tokenizer_settings=tokenizer,
        settings=settings,
        open_weights=partial(_open_weights, directory),
        tokenizer_mismatch=mismatch,
    )


def _pickle_hint(path: Path) -> str:
    pickles = ("pytorch_model.bin", "pytorch_model.bin.index.json")
    pickle = next((name for name in pickles if (path / name).is_file()), None)
    if not pickle:
        return ""
    return (
        f"; found {pickle}, a pickle, which is not opened for security reasons. Convert it once "
        "with transformers: AutoModelForPreTraining.from_pretrained(DIR).save_pretrained(NEW_DIR)"
    )


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Checks the types of `id2label` and `architectures`."""
    check_schema(f"{path}:", settings, {"id2label?": dict, "architectures?": [str]})
    names = settings.get("id2label") or {}
    if not all(
        re.fullmatch(r"0|[1-9]\d{0,5}", key) and isinstance(name, str)
        for key, name in names.items()
    ):
        raise InputError(
            f"{path}: id2label is {json.dumps(names)}; expected an object from class ids to label "
            'names, such as {"0": "no", "1": "yes"}'
        )


def _read_config(path: Path, settings: Mapping[str, Any]) -> BertConfig:
    act = settings.get("hidden_act")
    if isinstance(act, str):
        settings = {**settings, "hidden_act": _ACTIVATIONS_READ.get(act, act)}
    try:
        # Hugging Face's default is the exact gelu, with erf.
        return BertConfig.from_dict({"hidden_act": "gelu", **settings})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


# --- saving ---


def save_model_directory(
    path: str | os.PathLike, model: keras.Model, description: ModelDescription
) -> None:
    """Writes a model directory atomically; replaces an earlier one at the same path.

    `model` is a network of `keras_bert.models`. The parent directory is created if needed.

    Raises:
        InputError: the directory cannot be written, or contains files that are not of a model
            directory.
    """
    path = Path(path).absolute()
    check_replaceable(path)
    vocab = description.vocab
    if vocab is not None:
        description.config.check_vocab_size(len(vocab), path / VOCAB)
    num_labels = getattr(model, "num_labels", None)
    settings = description.hugging_face_settings(model.architecture, num_labels)
    with atomic_path(path, failures=(SafetensorError,)) as folder:
        folder.mkdir()
        weights = weights_of(model)
        dense = {name: weights.pop(name) for name in [*weights] if "/dense_" in name}
        write_model_directory(folder, weights, settings, vocab, description.tokenizer_settings)
        if description.card:
            write_bytes(folder / MODEL_CARD, description.card.encode())
        if description.sentence_transformer:
            description.sentence_transformer.write(folder, description.config.hidden_size, dense)


def write_model_directory(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    vocab: Sequence[str] | None,
    tokenizer: TokenizerSettings,
) -> None:
    """Writes the files of a model directory.

    Args:
        folder: the target folder.
        weights: {variable path: float32 array}.
        settings: the content of config.json.
        vocab: the V tokens in the order of their ids; if None, no tokenizer files are written.
        tokenizer: the settings of the tokenizer.
    """
    act = settings["hidden_act"]
    settings = {**settings, "hidden_act": _ACTIVATIONS_WRITTEN.get(act, act)}
    write_json(folder / CONFIG, settings)
    if vocab is not None:
        write_tokenizer(folder, vocab, tokenizer, settings["max_position_embeddings"])
    arrays = {
        hugging_face_name(path): np.ascontiguousarray(_transpose(path, value))
        for path, value in weights.items()
    }
    file = folder / WEIGHTS
    file.touch()
    mode = file.stat().st_mode
    # transformers rejects a file whose metadata do not name the framework.
    save_file(arrays, file, metadata={"format": "pt"})
    file.chmod(mode)  # save_file makes the file readable only by its owner.


def check_replaceable(path: Path) -> None:
    """Rejects an existing path, except for a directory with only the files of a model."""
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path}: is a file; expected a new path or an existing model directory")
    unexpected = sorted({entry.name for entry in path.iterdir()} - {*MODEL_FILES})
    if unexpected:
        raise InputError(
            f"{path}: contains {', '.join(unexpected)}; expected a new path, or a directory with "
            "only the files of an earlier save, because saving replaces the whole directory"
        )


# --- the names of the weights ---


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


# --- the files of the weights ---


@contextlib.contextmanager
def _open_weights(model_dir: Path) -> Iterator[StoredWeights]:
    """Opens the weights of a model directory, including those of Dense modules.

    Those of the modules are named dense.0.weight, dense.0.bias, dense.1.weight and so on.
    """
    folders = [folder for kind, folder in read_modules(model_dir) if kind == "Dense"]
    with contextlib.ExitStack() as stack:
        stored = stack.enter_context(_open_safetensors(transformer_folder(model_dir)))
        shapes, readers = dict(stored.shapes), {}
        for index, folder in enumerate(folders):
            if not (folder / WEIGHTS).is_file():
                continue
            dense = stack.enter_context(_open_safetensors(folder))
            for name, shape in dense.shapes.items():
                renamed = name.replace("linear", f"dense.{index}")
                shapes[renamed], readers[renamed] = shape, partial(dense.read, name)

        def read(name: str) -> np.ndarray:
            return readers[name]() if name in readers else stored.read(name)

        yield replace(stored, shapes=shapes, read=read)


@contextlib.contextmanager
def _open_safetensors(folder: Path) -> Iterator[StoredWeights]:
    """Opens the weights of a folder; they can be read while the context is open.

    Raises:
        InputError: a file is missing or damaged, or the index does not match the shards.
    """
    source = folder / (WEIGHTS if (folder / WEIGHTS).is_file() else INDEX)
    shard_of = _read_index(source) if source.name == INDEX else None
    shards = {source} if shard_of is None else {folder / name for name in shard_of.values()}
    with contextlib.ExitStack() as stack:
        files: dict[str, safe_open] = {}
        for path in sorted(shards):
            file = stack.enter_context(open_file(path))
            for name in file.keys():  # noqa: SIM118
                if name in files:
                    raise InputError(
                        f"{source}: {name} is in {path.name} and in another shard; expected each "
                        "weight in one file"
                    )
                files[name] = file
        if shard_of is not None and shard_of.keys() != files.keys():
            raise InputError(
                f"{source}: weight_map and the files contain different weights: "
                f"{', '.join(sorted(shard_of.keys() ^ files.keys()))}; expected the same names in "
                "both"
            )
        # Files of transformers may contain a shared weight under both of its names.
        names_in_file: dict[str, str] = {}
        for name, file in files.items():
            first = names_in_file.setdefault(current_name(name), name)
            if first != name and not _are_equal(
                files[first].get_slice(first), file.get_slice(name)
            ):
                raise InputError(
                    f"{source}: {first} and {name} are two names of one weight, with different "
                    "values; expected one of them"
                )
        slices = {name: files[old].get_slice(old) for name, old in names_in_file.items()}

        def read(name: str) -> np.ndarray:
            old = names_in_file[name]
            try:
                return files[old].get_tensor(old)
            except (AttributeError, TypeError):  # NumPy has no 8-bit floats.
                raise stored.wrong_type(name, slices[name].get_dtype()) from None

        stored = StoredWeights(
            source=str(source),
            layout=LAYOUT,
            shapes={name: tuple(values.get_shape()) for name, values in slices.items()},
            read=read,
            names_in_file=names_in_file,
        )
        yield stored


def _are_equal(a: Any, b: Any) -> bool:
    """Returns whether two slices of safetensors have equal values."""
    try:
        return a.get_dtype() == b.get_dtype() and np.array_equal(a[:], b[:])
    except (AttributeError, TypeError):  # NumPy has no 8-bit floats.
        return False


def open_file(path: Path) -> safe_open:
    """Opens a safetensors file; raises an InputError if it is missing or damaged."""
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a valid safetensors file ({error})") from None


def _read_index(index: Path) -> dict[str, str]:
    """Returns {weight name: name of the shard} of an index file."""
    shard_of = read_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in shard_of.values()
    ):
        raise InputError(
            f"{index}: expected a weight_map from weight names to file names in the same folder"
        )
    missing = {name for name in shard_of.values() if not (index.parent / name).is_file()}
    if missing:
        raise InputError(
            f"{index}: lists missing files: {', '.join(sorted(missing))}; expected all shards in "
            "the same folder"
        )
    return shard_of
