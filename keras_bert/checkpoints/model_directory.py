"""Reads and writes Hugging Face model directories, which transformers can open too.

    directory = open_model_directory("run/model")
    model = BertPretrainer(directory.config)
    print(directory.load_into(model))

Pickle files are never read.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError

from keras_bert.checkpoints.checkpoint import ARCHITECTURES, Checkpoint, ModelDescription
from keras_bert.checkpoints.safetensors_file import (
    INDEX,
    WEIGHTS,
    write_safetensors,
)
from keras_bert.checkpoints.sentence_transformers import (
    SENTENCE_TRANSFORMER_FILES,
    lower_cases,
    open_with_dense,
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
from keras_bert.checkpoints.weights import weights_of
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_json, write_bytes, write_json
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import fit_vocab

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
        open_weights=partial(open_with_dense, directory),
        tokenizer_mismatch=mismatch,
    )


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
    architecture = ARCHITECTURES[type(model).__name__]
    settings = description.hugging_face_settings(architecture, getattr(model, "num_labels", None))
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
        weights: {variable path: array}.
        settings: the content of config.json.
        vocab: the V tokens in the order of their ids; if None, no tokenizer files are written.
        tokenizer: the settings of the tokenizer.
    """
    act = settings["hidden_act"]
    settings = {**settings, "hidden_act": _ACTIVATIONS_WRITTEN.get(act, act)}
    write_json(folder / CONFIG, settings)
    if vocab is not None:
        write_tokenizer(folder, vocab, tokenizer, settings["max_position_embeddings"])
    write_safetensors(folder, weights)


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


def _pickle_hint(path: Path) -> str:
    pickles = ("pytorch_model.bin", "pytorch_model.bin.index.json")
    found = next((name for name in pickles if (path / name).is_file()), None)
    if not found:
        return ""
    return (
        f"; found {found}, a pickle, which is not opened for security reasons. Convert it once "
        "with transformers: AutoModelForPreTraining.from_pretrained(DIR).save_pretrained(NEW_DIR)"
    )


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Checks the types of `id2label` and `architectures`."""
    names = settings.get("id2label") or {}
    if not isinstance(names, dict) or not all(
        re.fullmatch(r"0|[1-9]\d{0,5}", key) and isinstance(name, str)
        for key, name in names.items()
    ):
        raise InputError(
            f"{path}: id2label is {json.dumps(names)}; expected an object from class ids to label "
            'names, such as {"0": "no", "1": "yes"}'
        )
    architectures = settings.get("architectures") or []
    if not isinstance(architectures, list) or not all(
        isinstance(name, str) for name in architectures
    ):
        raise InputError(
            f"{path}: architectures is {json.dumps(architectures)}; expected a list of class "
            'names, such as ["BertModel"]'
        )


def _read_config(path: Path, settings: Mapping[str, Any]) -> BertConfig:
    act = settings.get("hidden_act")
    known = isinstance(act, str) and act in _ACTIVATIONS_READ
    changes = {"hidden_act": _ACTIVATIONS_READ[act]} if known else {}
    try:
        # Hugging Face's default is the exact gelu, with erf.
        return BertConfig.from_dict({"hidden_act": "gelu", **settings, **changes})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
