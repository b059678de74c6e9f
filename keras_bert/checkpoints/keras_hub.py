"""Reads and writes KerasHub presets of a BertBackbone, without the KerasHub library.

KerasHub's BertBackbone can open the written presets; BertMaskedLM and BertTextClassifier can open
them if the model has their head.

KerasHub always computes the tanh approximation of gelu. Settings and heads that it does not support
are stored under `keras_bert`, which it ignores: settings in `metadata.json`, heads in
`task.weights.h5`.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.keras_hub_names import BACKBONE, keras_hub_name
from keras_bert.checkpoints.keras_hub_tokenizer import (
    METADATA,
    METADATA_KEYS,
    TOKENIZER,
    keras_object,
    metadata_of,
    read_tokenizer,
    tokenizer_object,
)
from keras_bert.checkpoints.keras_hub_weights import TASK_WEIGHTS, WEIGHTS, open_weights
from keras_bert.checkpoints.model_directory import write_vocab
from keras_bert.checkpoints.weights import Layout, stored_arrays
from keras_bert.common.errors import InputError
from keras_bert.common.files import read_json, write_json
from keras_bert.config import BertConfig
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import fit_vocab, load_vocab

CONFIG, VOCAB = "config.json", "assets/tokenizer/vocabulary.txt"
TASK, PREPROCESSOR = "task.json", "preprocessor.json"
FILES = (CONFIG, METADATA, TOKENIZER, "assets", WEIGHTS, TASK, TASK_WEIGHTS, PREPROCESSOR)

# Config keys of this library -> the keys of a KerasHub backbone.
_SIZES = {
    "vocab_size": "vocabulary_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_size": "hidden_dim",
    "intermediate_size": "intermediate_dim",
    "hidden_dropout_prob": "dropout",
    "max_position_embeddings": "max_sequence_length",
    "type_vocab_size": "num_segments",
}
# Settings that are fixed in KerasHub; this library adds the model's values to metadata.json.
_FIXED = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12, "initializer_range": 0.02}


def _layout(config: BertConfig, settings: Mapping[str, Any]) -> Layout:
    heads = config.num_attention_heads

    def store(path: str, value: np.ndarray) -> np.ndarray:
        """Splits the head axis: [H, H] -> [H, N, D], or [N, D, H] for the output projection."""
        if re.search(r"/attention/self/(query|key|value)/", path):
            return value.reshape(*value.shape[:-1], heads, -1)
        if path.endswith("/attention/output/dense/kernel"):
            return value.reshape(heads, -1, value.shape[-1])
        return value

    is_token_classifier = settings.get("architectures") == ["BertForTokenClassification"]
    return Layout(
        name=partial(keras_hub_name, is_token_classifier=is_token_classifier),
        store=store,
        restore=lambda path, value: value,
        encoder_prefix=BACKBONE,
    )


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
    own = metadata.get("keras_bert")
    own = dict(own) if isinstance(own, dict) else {}
    of_tokenizer = {key: own.pop(key) for key in METADATA_KEYS if key in own}
    settings = _settings(written["config"], own)
    try:
        config = BertConfig.from_dict(settings)
    except InputError as error:
        raise InputError(f"{path / CONFIG}: {error}") from None
    vocab = load_vocab(path / VOCAB) if (path / VOCAB).is_file() else None
    if vocab:
        vocab = fit_vocab(vocab, config.vocab_size, path / VOCAB)
    tokenizer, mismatch = read_tokenizer(path, of_tokenizer, vocab)
    return Checkpoint(
        path=path,
        kind="a KerasHub preset",
        config=config,
        vocab=None if mismatch else vocab,
        tokenizer_settings=tokenizer,
        settings=settings,
        open_weights=partial(open_weights, path, _layout(config, settings)),
        tokenizer_mismatch=mismatch,
    )


def _settings(backbone: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings with Hugging Face's keys.

    The sizes are from KerasHub's config `backbone`. The others are from `own`, which this library
    writes to metadata.json, or default values.
    """
    sizes = {ours: backbone[theirs] for ours, theirs in _SIZES.items() if theirs in backbone}
    fixed = {"attention_probs_dropout_prob": backbone.get("dropout", 0.1), **_FIXED}
    return {**fixed, **own, **sizes}


def write_keras_hub_preset(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    vocab: Sequence[str] | None,
    tokenizer: TokenizerSettings,
) -> None:
    """Writes the files of a preset; the arguments are those of `write_model_directory`.

    Raises:
        InputError: the weights contain no pooler, which KerasHub requires.
    """
    if "encoder/pooler/dense/kernel" not in weights:
        raise InputError(
            "the weights have no pooler; expected one, because a KerasHub preset must contain it"
        )
    config = BertConfig.from_dict(dict(settings))
    arrays = stored_arrays(weights, _layout(config, settings))
    for part, file in (("backbone", WEIGHTS), ("task", TASK_WEIGHTS)):
        own = {name: value for name, value in arrays.items() if name.startswith(f"{part}/")}
        if own:
            with h5py.File(folder / file, "w") as opened:
                for name, value in own.items():
                    # The checksum detects damaged data; HDF5 has none for scalars.
                    opened.create_dataset(
                        name.removeprefix(f"{part}/"), data=value, fletcher32=value.ndim > 0 or None
                    )
    count = sum(value.size for path, value in weights.items() if path.startswith("encoder/"))
    own = {**settings, **metadata_of(tokenizer)}
    write_json(folder / METADATA, {"parameter_count": count, "keras_bert": own})
    backbone = {theirs: settings[ours] for ours, theirs in _SIZES.items()}
    backbone = keras_object("bert.bert_backbone", "BertBackbone", backbone, "float32")
    write_json(folder / CONFIG, backbone)
    written = None
    if vocab is not None:
        write_vocab(folder / VOCAB, vocab)
        written = tokenizer_object(tokenizer)
        write_json(folder / TOKENIZER, written)
    _write_task(folder, weights, settings, backbone, written)


def _write_task(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    backbone: dict[str, Any],
    tokenizer: dict[str, Any] | None,
) -> None:
    """Writes task.json and the preprocessor if KerasHub has a class for the head."""
    own: dict[str, Any] = {}
    if "masked_lm/output_bias" in weights:
        kind, module = "BertMaskedLM", "bert.bert_masked_lm"
    elif settings["architectures"] == ["BertForSequenceClassification"]:
        kind, module = "BertTextClassifier", "bert.bert_text_classifier"
        own = {
            "num_classes": weights["classifier/bias"].size,
            "activation": "linear",
            "dropout": settings["hidden_dropout_prob"],
        }
    else:
        return
    preprocessor = None
    if tokenizer:
        length = {"sequence_length": settings["max_position_embeddings"]}
        preprocessor = keras_object(
            f"{module}_preprocessor",
            f"{kind}Preprocessor",
            {"tokenizer": tokenizer, "config_file": PREPROCESSOR, **length},
            "float32",
        )
        write_json(folder / PREPROCESSOR, preprocessor)
    parts = {"backbone": backbone, "preprocessor": preprocessor, **own}
    write_json(folder / TASK, keras_object(module, kind, parts))
