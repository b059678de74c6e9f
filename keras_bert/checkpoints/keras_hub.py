"""Reads KerasHub presets of a BertBackbone, without the KerasHub library.

KerasHub always computes the tanh approximation of gelu. HDF5 files can refer to other files of the
machine; such weights are rejected.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.tokenizer_files import find_mismatch, guess_lower_case
from keras_bert.checkpoints.weights import Layout, StoredWeights
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import check_schema, read_json, value_of
from keras_bert.text.settings import TokenizerSettings, UserToken
from keras_bert.text.vocabulary import SPECIAL_TOKENS, fit_vocab, load_vocab

CONFIG, METADATA = "config.json", "metadata.json"
TOKENIZER, VOCAB = "tokenizer.json", "assets/tokenizer/vocabulary.txt"
WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"

# Config keys of this library -> the keys of a KerasHub backbone.
SIZES = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "hidden_dropout_prob": "dropout",
    "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "num_segments",
}
# Settings that are fixed in KerasHub.
_FIXED = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12, "initializer_range": 0.02}

# Keys of tokenizer.json, each with the only value that matches BERT's tokenizer.
_TOKENIZER_RULES = (
    ("class_name", "BertTokenizer"),
    ("split", True),
    ("suffix_indicator", "##"),
    ("oov_token", "[UNK]"),
)
# KerasHub counts bytes, not characters.
_KERAS_HUB_MAX_CHARS = 100

# Layer names of this library -> groups in model.weights.h5 and task.weights.h5. The variables of a
# group are numbered, a kernel or scale before its bias.
_BACKBONE = "backbone/layers/"
_BLOCK = {
    "attention/self/query": "_self_attention_layer/query_dense",
    "attention/self/key": "_self_attention_layer/key_dense",
    "attention/self/value": "_self_attention_layer/value_dense",
    "attention/output/dense": "_self_attention_layer/output_dense",
    "attention/output/LayerNorm": "_self_attention_layer_norm",
    "intermediate/dense": "_feedforward_intermediate_dense",
    "output/dense": "_feedforward_output_dense",
    "output/LayerNorm": "_feedforward_layer_norm",
}
_SINGLE_VARIABLES = {
    "encoder/embeddings/word_embeddings": _BACKBONE + "reversible_embedding/vars/0",
    "encoder/embeddings/position_embeddings": _BACKBONE + "position_embedding/vars/0",
    "encoder/embeddings/token_type_embeddings": _BACKBONE + "embedding/vars/0",
    "masked_lm/output_bias": "task/layers/masked_lm_head/vars/0",
}
_LAYERS = {
    "encoder/embeddings/LayerNorm": _BACKBONE + "layer_normalization",
    "encoder/pooler/dense": _BACKBONE + "dense",
    "masked_lm/dense": "task/layers/masked_lm_head/_intermediate_dense",
    "masked_lm/LayerNorm": "task/layers/masked_lm_head/_intermediate_layer_norm",
    "classifier": "task/layers/dense",
}
_VARIABLE_INDICES = {"kernel": 0, "gamma": 0, "bias": 1, "beta": 1}

# A damaged file raises any of these: names that are not UTF-8, types that NumPy does not have.
_FAILURES = (OSError, RuntimeError, KeyError, TypeError, ValueError)


def is_keras_hub_preset(path: Path) -> bool:
    """Returns whether a folder is a preset: config.json has the keys class_name and config."""
    return (path / CONFIG).is_file() and {"class_name", "config"} <= read_json(path / CONFIG).keys()


def open_keras_hub_preset(path: Path) -> Checkpoint:
    """Opens a preset without reading its weights.

    Raises:
        InputError: the preset has another architecture, a file is missing or cannot be read, or the
            vocabulary does not match the config.
    """
    written = read_json(path / CONFIG)
    if written["class_name"] != "BertBackbone" or not isinstance(written["config"], dict):
        raise InputError(
            f"{path / CONFIG}: class_name is {written['class_name']!r}; expected 'BertBackbone'"
        )
    if not (path / WEIGHTS).is_file():
        raise InputError(
            f"{path}: has no {WEIGHTS}; expected a KerasHub preset with all weights in one file"
        )
    metadata = read_json(path / METADATA) if (path / METADATA).is_file() else {}
    if "keras_bert" in metadata:
        raise InputError(
            f"{path / METADATA}: was written by keras_bert 0.2 or earlier, with settings that "
            "KerasHub does not have; convert the preset with that version"
        )
    backbone = written["config"]
    sizes = {ours: backbone[theirs] for ours, theirs in SIZES.items() if theirs in backbone}
    fixed = {"attention_probs_dropout_prob": backbone.get("dropout", 0.1), **_FIXED}
    settings = {**fixed, **sizes}
    try:
        config = BertConfig.from_dict(settings)
    except InputError as error:
        raise InputError(f"{path / CONFIG}: {error}") from None
    vocab = load_vocab(path / VOCAB) if (path / VOCAB).is_file() else None
    if vocab:
        vocab = fit_vocab(vocab, config.vocab_size, path / VOCAB)
    tokenizer, mismatch = _read_tokenizer(path, vocab)
    return Checkpoint(
        path=path,
        kind="a KerasHub preset",
        config=config,
        vocab=None if mismatch else vocab,
        tokenizer_settings=tokenizer,
        settings=settings,
        open_weights=partial(_open_weights, path, layout_of(config)),
        tokenizer_mismatch=mismatch,
    )


# --- the tokenizer ---


def _read_tokenizer(
    path: Path, vocab: Sequence[str] | None
) -> tuple[TokenizerSettings, str | None]:
    """Reads the settings of the tokenizer of the preset `path`.

    Returns:
        The settings, and one line about a setting that is not supported; None if all are.

    Raises:
        InputError: a setting has the wrong type.
    """
    file = path / TOKENIZER
    tokenizer = read_json(file) if file.is_file() else {}
    content = tokenizer.get("config")
    content = content if isinstance(content, dict) else {}
    content = {**content, "class_name": tokenizer.get("class_name")}
    mismatch = find_mismatch(file, content, _TOKENIZER_RULES)
    casing = guess_lower_case(vocab, path.name)
    do_lower_case = value_of(file, content, "lowercase", bool, casing)
    strip_accents = value_of(file, content, "strip_accents", bool, None)
    if do_lower_case and strip_accents is False:
        # KerasHub's default is false, even in presets of uncased models that it converted from
        # Hugging Face. This is an error of KerasHub: these models were trained without accents.
        logging.warning(
            "%s: strip_accents is false; accents are stripped anyway, as in Google's BERT; for a "
            "model that was trained with accents, convert the preset with --nostrip_accents",
            file,
        )
        strip_accents = None
    chinese = value_of(file, content, "split_on_cjk", bool, True)
    settings = TokenizerSettings(
        do_lower_case, strip_accents, chinese, max_input_chars_per_word=_KERAS_HUB_MAX_CHARS
    )
    contents = _special_tokens(file, content, vocab or ())
    try:
        return replace(settings, user_tokens=tuple(map(UserToken, contents))), mismatch
    except InputError as error:
        return settings, mismatch or f"{file}: special_tokens: {error}"


def _special_tokens(file: Path, content: Mapping[str, Any], vocab: Sequence[str]) -> list[str]:
    """Returns the tokens besides BERT's that KerasHub keeps whole, in the order of their ids."""
    if not value_of(file, content, "special_tokens_in_strings", bool, False):
        return []
    check_schema(f"{file}:", content, {"special_tokens?": [str]})
    tokens = content.get("special_tokens") or []
    user_tokens = {*tokens} - {*SPECIAL_TOKENS}
    return [token for token in vocab if token in user_tokens]


# --- the weights ---


def layout_of(config: BertConfig) -> Layout:
    """Returns the names and array layout of the weights."""
    heads = config.num_attention_heads

    def store(path: str, value: np.ndarray) -> np.ndarray:
        """Splits the head axis: [H, H] -> [H, N, D], or [N, D, H] for the output projection."""
        if re.search(r"/attention/self/(query|key|value)/", path):
            return value.reshape(*value.shape[:-1], heads, -1)
        if path.endswith("/attention/output/dense/kernel"):
            return value.reshape(heads, -1, value.shape[-1])
        return value

    return Layout(name=keras_hub_name, store=store, encoder_prefix=_BACKBONE)


def keras_hub_name(path: str) -> str:
    """Converts a variable path of this library to the file, group and index in KerasHub's files.

    `encoder/layer_0/output/dense/kernel` becomes
    `backbone/layers/transformer_encoder/_feedforward_output_dense/vars/0`. Heads that KerasHub
    does not have get names that are in no file.
    """
    if path in _SINGLE_VARIABLES:
        return _SINGLE_VARIABLES[path]
    layer, _, variable = path.rpartition("/")
    block = re.match(r"encoder/layer_(\d+)/(.*)", layer)
    if block:
        number = f"_{block[1]}" * (block[1] != "0")
        group = f"{_BACKBONE}transformer_encoder{number}/{_BLOCK[block[2]]}"
    elif layer in _LAYERS:
        group = _LAYERS[layer]
    else:
        return f"heads/{path}"
    return f"{group}/vars/{_VARIABLE_INDICES[variable]}"


@contextlib.contextmanager
def _open_weights(path: Path, layout: Layout) -> Iterator[StoredWeights]:
    """Opens the weights of a preset; they can be read while the context is open.

    Raises:
        InputError: a file is damaged, or refers to other files.
    """
    files = {"backbone": path / WEIGHTS, "task": path / TASK_WEIGHTS}
    values: dict[str, h5py.Dataset] = {}
    with contextlib.ExitStack() as stack:
        for part, file in files.items():
            if not file.is_file():
                continue
            try:
                opened = stack.enter_context(h5py.File(file, "r"))
                opened.visititems(partial(_collect, values, part, file))
            except InputError:
                raise
            except _FAILURES as error:
                raise InputError(f"{file}: not a valid HDF5 file ({error})") from None
        slots = [name for name in values if name.startswith("task/optimizer/")]
        for name in slots:
            del values[name]
        yield StoredWeights(
            source=str(path),
            layout=layout,
            shapes={name: tuple(value.shape) for name, value in values.items()},
            read=lambda name: _array(path, values[name]),
            skipped=len(slots),
        )


def _collect(values: dict[str, h5py.Dataset], part: str, file: Path, name: str, item: Any) -> None:
    if isinstance(item, h5py.Dataset):
        # The values of such a dataset are in other files. `visititems` skips links to other files.
        if item.external or item.is_virtual:
            kind = "has external storage" if item.external else "is a virtual dataset"
            raise InputError(
                f"{file}: {name} {kind}, which refers to other files; expected all weights in "
                "this file"
            )
        if item.shape is None:
            raise InputError(f"{file}: {name} is empty; expected an array of numbers")
        # The first versions of Keras used another name for the group of a model's layers.
        values[f"{part}/{name.replace('_layer_checkpoint_dependencies/', 'layers/', 1)}"] = item


def _array(path: Path, value: h5py.Dataset) -> np.ndarray:
    try:
        array = value[()]
        # HDF5 has no bfloat16: Keras stores the raw bytes, and the dtype as an attribute.
        is_bfloat16 = value.attrs.get("dtype") == "bfloat16" and value.dtype.itemsize == 2
    except _FAILURES as error:
        raise InputError(f"{path}: {value.name} cannot be read ({error})") from None
    return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array
