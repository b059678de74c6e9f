"""Reads KerasHub presets of a BertBackbone, without the KerasHub library.

KerasHub always computes the tanh approximation of gelu. HDF5 files can refer to other files of the
machine; such weights are rejected.
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint, config_of
from keras_bert.checkpoints.tokenizer_files import find_mismatch, guess_lower_case, read_vocab
from keras_bert.checkpoints.weights import StoredWeights
from keras_bert.errors import InputError
from keras_bert.files import read_json, value_of
from keras_bert.text.settings import TokenizerSettings

CONFIG = "config.json"
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
    ("special_tokens_in_strings", False),
)

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
    preset = read_json(path / CONFIG)
    if preset["class_name"] != "BertBackbone" or not isinstance(preset["config"], dict):
        raise InputError(
            f"{path / CONFIG}: class_name is {preset['class_name']!r}; expected 'BertBackbone'"
        )
    if not (path / WEIGHTS).is_file():
        raise InputError(
            f"{path}: has no {WEIGHTS}; expected a KerasHub preset with all weights in one file"
        )
    backbone = preset["config"]
    sizes = {ours: backbone[theirs] for ours, theirs in SIZES.items() if theirs in backbone}
    dropout = {"attention_probs_dropout_prob": backbone.get("dropout", 0.1)}
    settings = dropout | _FIXED | sizes
    config = config_of(path / CONFIG, settings)
    vocab = read_vocab(path / VOCAB, config.vocab_size)
    tokenizer, mismatch = _read_tokenizer(path, vocab)
    return Checkpoint(
        path=path,
        kind="a KerasHub preset",
        config=config,
        vocab=None if mismatch else vocab,
        tokenizer_settings=tokenizer,
        settings=settings,
        open_weights=partial(KerasHubWeights, path, config.num_attention_heads),
        tokenizer_mismatch=mismatch,
    )


def _read_tokenizer(
    path: Path, vocab: Sequence[str] | None
) -> tuple[TokenizerSettings, str | None]:
    """Returns the settings of the tokenizer, and one line about an unsupported setting or None."""
    file = path / TOKENIZER
    tokenizer = read_json(file) if file.is_file() else {}
    content = tokenizer.get("config")
    content = content if isinstance(content, dict) else {}
    content = {**content, "class_name": tokenizer.get("class_name")}
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
    settings = TokenizerSettings(
        do_lower_case,
        strip_accents,
        value_of(file, content, "split_on_cjk", bool, True),
        max_input_chars_per_word=100,  # KerasHub counts bytes, not characters.
    )
    return settings, find_mismatch(file, content, _TOKENIZER_RULES)


# --- the weights ---


class KerasHubWeights(StoredWeights):
    """The weights of a preset, in model.weights.h5 and, for a head, in task.weights.h5.

    The variables of a layer are numbered, a kernel or scale before its bias. Heads that KerasHub
    does not have keep names that are in no file.

    Args:
        path: the folder of the preset.
        heads: the number N of attention heads. Of their kernels, [H, H], the files have [H, N, D],
            and of that of their output [N, D, H].

    Raises:
        InputError: a file is damaged, or refers to other files.
    """

    names = (
        ("^encoder/layer_0/", "backbone/layers/transformer_encoder/"),
        (r"^encoder/layer_(\d+)/", r"backbone/layers/transformer_encoder_\1/"),
        ("/attention/self/(query|key|value)/", r"/_self_attention_layer/\1_dense/"),
        ("/attention/output/dense/", "/_self_attention_layer/output_dense/"),
        ("/attention/output/LayerNorm/", "/_self_attention_layer_norm/"),
        ("/(intermediate|output)/dense/", r"/_feedforward_\1_dense/"),
        ("/output/LayerNorm/", "/_feedforward_layer_norm/"),
        ("^encoder/embeddings/word_.*", "backbone/layers/reversible_embedding/vars/0"),
        ("^encoder/embeddings/position_.*", "backbone/layers/position_embedding/vars/0"),
        ("^encoder/embeddings/token_type_.*", "backbone/layers/embedding/vars/0"),
        ("^encoder/embeddings/LayerNorm/", "backbone/layers/layer_normalization/"),
        ("^encoder/pooler/", "backbone/layers/"),
        ("^masked_lm/output_bias", "task/layers/masked_lm_head/vars/0"),
        ("^masked_lm/dense/", "task/layers/masked_lm_head/_intermediate_dense/"),
        ("^masked_lm/LayerNorm/", "task/layers/masked_lm_head/_intermediate_layer_norm/"),
        ("^classifier/", "task/layers/dense/"),
        ("/(kernel|gamma)$", "/vars/0"),
        ("/(bias|beta)$", "/vars/1"),
    )
    encoder_prefix = "backbone/layers/"

    def __init__(self, path: Path, heads: int):
        super().__init__(path)
        self._heads = heads
        self._values: dict[str, h5py.Dataset] = {}
        for part, file in (("backbone", path / WEIGHTS), ("task", path / TASK_WEIGHTS)):
            if file.is_file():
                try:
                    opened = self._files.enter_context(h5py.File(file, "r"))
                    opened.visititems(partial(self._add, part, file))
                except InputError:
                    raise
                except _FAILURES as error:
                    raise InputError(f"{file}: not a valid HDF5 file ({error})") from None
        shapes = {name: tuple(value.shape) for name, value in self._values.items()}
        self.shapes = {n: s for n, s in shapes.items() if not n.startswith("task/optimizer/")}
        self.skipped = len(shapes) - len(self.shapes)

    def _add(self, part: str, file: Path, name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            # The values of such a dataset are in other files. `visititems` skips links to them.
            if item.external or item.is_virtual or item.shape is None:
                raise InputError(
                    f"{file}: {name} is empty or refers to other files; expected all weights in "
                    "this file"
                )
            # The first versions of Keras used another name for the group of a model's layers.
            name = name.replace("_layer_checkpoint_dependencies/", "layers/", 1)
            self._values[f"{part}/{name}"] = item

    def stored_shape(self, path: str, shape: Iterable[int]) -> tuple[int, ...]:
        """Returns the shape of a stored variable; the head axis of kernels and biases is split."""
        shape = tuple(shape)
        if re.search("/attention/self/(query|key|value)/", path):
            return (*shape[:-1], self._heads, shape[-1] // self._heads)
        if path.endswith("/attention/output/dense/kernel"):
            return (self._heads, shape[0] // self._heads, shape[-1])
        return shape

    def read(self, name: str) -> np.ndarray:
        """Reads a stored array."""
        value = self._values[name]
        try:
            array = value[()]
            # HDF5 has no bfloat16: Keras stores the raw bytes, and the dtype as an attribute.
            is_bfloat16 = value.attrs.get("dtype") == "bfloat16" and value.dtype.itemsize == 2
        except _FAILURES as error:
            raise InputError(f"{self.source}: {value.name} cannot be read ({error})") from None
        return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array
