"""Opens checkpoints of all formats, also those that a run saves while it trains.

Model directories are read by hugging_face. TF1 checkpoints of Google's BERT, and KerasHub presets
of a BertBackbone, are read here, without the KerasHub library.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import Checkpoint, config_of
from keras_bert.checkpoints.hub import local_model
from keras_bert.checkpoints.hugging_face import CONFIG, INDEX, open_file, open_model_directory
from keras_bert.checkpoints.tokenizer_files import (
    FAST_TOKENIZER,
    VOCAB,
    find_mismatch,
    guess_lower_case,
    read_vocab,
)
from keras_bert.checkpoints.weights import WEIGHTS, StoredWeights
from keras_bert.errors import InputError
from keras_bert.files import read_json, sha256, value_of
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import fit_vocab, load_vocab

STATE = "state.json"


def open_checkpoint(
    path: str | os.PathLike,
    *,
    vocab_file: str = "",
    do_lower_case: bool | None = None,
    label_names: Sequence[str] | None = None,
    hub_names: bool = False,
) -> Checkpoint:
    """Opens a checkpoint of any format without reading its weights, and logs the format.

    Args:
        path: a Hugging Face model directory, the folder of an earlier run or one of its training
            checkpoints, a TF1 checkpoint in Google's format (prefix or directory), a KerasHub
            preset, or hf://NAME for a model of the Hugging Face Hub, which is downloaded.
        vocab_file: the file of a vocabulary that replaces that of the checkpoint.
        do_lower_case: replaces the setting of the tokenizer; None to keep it.
        label_names: replace the names of the classifier's labels, in the order of the logits.
        hub_names: whether the path may also be NAME, if there is no such path.
    """
    path = local_model(path, hub_names)
    if (path / "run.json").is_file() and not _contains_weights(path):
        path = path / "model"
    if is_google_checkpoint(path):
        checkpoint = open_google_checkpoint(path)
    elif not path.is_dir():
        problem = "is not a checkpoint" if path.exists() else "no such checkpoint"
        raise InputError(
            f"{path}: {problem}; expected a model directory, an earlier run's folder, a "
            "TF1 checkpoint (prefix or directory), a KerasHub preset, or hf://NAME for a model of "
            "the Hugging Face Hub"
        )
    elif is_keras_hub_preset(path):
        checkpoint = open_keras_hub_preset(path)
    elif (path / STATE).is_file() and (path / WEIGHTS).is_file():
        checkpoint = _open_training_checkpoint(path)
    else:
        checkpoint = open_model_directory(path)
    casing = "uncased" if checkpoint.do_lower_case else "cased"
    logging.info("%s is %s; the model is %s", path, checkpoint.kind, casing)
    if checkpoint.tokenizer_mismatch:
        logging.warning(
            "%s; the checkpoint is opened without its tokenizer", checkpoint.tokenizer_mismatch
        )
    if label_names:
        checkpoint = _with_label_names(checkpoint, label_names)
    if vocab_file:
        vocab = fit_vocab(load_vocab(vocab_file), checkpoint.config.vocab_size, vocab_file)
        checkpoint = replace(checkpoint, vocab=vocab)
    if do_lower_case not in (None, checkpoint.do_lower_case):
        logging.warning(
            "--do_lower_case=%s overrides the setting of %s, which is %s",
            do_lower_case,
            checkpoint.path,
            checkpoint.do_lower_case,
        )
        settings = replace(checkpoint.tokenizer_settings, do_lower_case=do_lower_case)
        checkpoint = replace(checkpoint, tokenizer_settings=settings)
    return checkpoint


def _contains_weights(path: Path) -> bool:
    """Returns whether a folder is itself a model directory or a preset."""
    weights = (WEIGHTS, INDEX, _HUB_WEIGHTS)
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in weights)


def _with_label_names(checkpoint: Checkpoint, names: Sequence[str]) -> Checkpoint:
    with checkpoint.open_weights() as stored:
        logits = stored.num_labels
    if len(names) != logits or len({*names}) < len(names):
        raise InputError(
            f"--label_names={','.join(names)}: {checkpoint.path} has {logits or 'no'} logits; "
            "expected one name per logit, all different"
        )
    id2label = {str(index): name for index, name in enumerate(names)}
    return replace(checkpoint, settings={**checkpoint.settings, "id2label": id2label})


# --- training checkpoints ---


def _open_training_checkpoint(path: Path) -> Checkpoint:
    """Opens a training checkpoint, OUT/checkpoints/step-NNNNNNNN, without reading its weights.

    Such a folder has only the weights and the optimizer's state. Config, vocabulary, casing and
    labels are those of OUT/model, so the run must be finished.
    """
    model = path.absolute().parent.parent / "model"
    if not model.is_dir():
        raise InputError(
            f"{path}: found no {model}, which has the config and the vocabulary; expected a "
            "checkpoint of a finished run in its folder checkpoints/"
        )
    return replace(
        open_model_directory(model),
        path=path,
        kind="a training checkpoint",
        open_weights=partial(TrainingWeights, path),
    )


class TrainingWeights(StoredWeights):
    """The weights of a training checkpoint, with the variable paths and arrays of this library."""

    def __init__(self, folder: Path):
        path = folder / WEIGHTS
        super().__init__(path)
        digests = read_json(folder / STATE).get("sha256")
        if not isinstance(digests, dict) or sha256(path) != digests.get(WEIGHTS):
            raise InputError(
                f"{path}: does not have the checksum in {STATE}; expected an undamaged checkpoint"
            )
        self._file = self._files.enter_context(open_file(path))
        for name in self._file.keys():  # noqa: SIM118
            if not name.endswith("seed_generator_state"):
                self.shapes[name] = tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """Reads a stored array."""
        return self._file.get_tensor(name)


# --- TF1 checkpoints in the format of Google's BERT release ---

# In Google's code, `gelu` means the tanh approximation, which is `gelu_new` in this library.
# Checkpoints that earlier versions of this library wrote have additional keys in the config for the
# settings that Google's code does not have: the exact gelu, the tokenizer, label names.
_TF1_CONFIG = "bert_config.json"

# The additional key for the exact name of a gelu, because Google's code only knows `gelu`.
_EXACT_ACT = "keras_bert_hidden_act"

_SLOT = re.compile(
    r"(/(adam_[mv]|Adam(_1)?|lamb_[mv]|Momentum)|^global_step|^beta[12]_power|^(current_)?loss_scale)$"
)


def is_google_checkpoint(path: Path) -> bool:
    """Returns whether a path is a TF1 checkpoint: a prefix or a directory."""
    if path.is_dir():
        # Some Hugging Face directories also contain Google's config.
        is_other = any(path.glob("model.safetensors*"))
        return not is_other and ((path / _TF1_CONFIG).is_file() or any(path.glob("*.ckpt*.index")))
    return path.with_name(f"{path.name}.index").is_file()


def open_google_checkpoint(path: Path) -> Checkpoint:
    """Opens a TF1 checkpoint without reading its weights.

    The path is a prefix such as `bert_model.ckpt`, or a directory. `bert_config.json` and
    `vocab.txt` are read from the folder of the weights.
    """
    prefix = _prefix(path) if path.is_dir() else path
    folder = prefix.parent
    if not (folder / _TF1_CONFIG).is_file():
        raise InputError(
            f"{folder}: has no {_TF1_CONFIG}; expected it next to the weights. Copy the one that "
            "was used in training"
        )
    settings = read_json(folder / _TF1_CONFIG)
    exact = settings.pop(_EXACT_ACT, None)
    if settings.get("hidden_act", "gelu") == "gelu":
        settings["hidden_act"] = exact or "gelu_new"
    names = [field.name for field in fields(TokenizerSettings) if field.name in settings]
    tokenizer = {name: settings.pop(name) for name in names}
    config = config_of(folder / _TF1_CONFIG, settings)
    vocab = read_vocab(folder / VOCAB, config.vocab_size)
    casing = guess_lower_case(vocab, folder.name)
    return Checkpoint(
        path=path,
        kind="a TF1 checkpoint in Google's format",
        config=config,
        vocab=vocab,
        tokenizer_settings=TokenizerSettings.read(folder / _TF1_CONFIG, tokenizer, casing),
        settings=settings,
        open_weights=partial(GoogleWeights, prefix),
    )


def _prefix(folder: Path) -> Path:
    """Returns the prefix that the file `checkpoint` of a folder names, or else the only one."""
    names = sorted(path.name.removesuffix(".index") for path in folder.glob("*.index"))
    state = folder / "checkpoint"
    if state.is_file():
        content = state.read_bytes().decode("utf-8", errors="replace")
        named = re.search(r'^model_checkpoint_path: "(.*)"$', content, re.M)
        if named and Path(named[1]).name in names:
            return folder / Path(named[1]).name
    if len(names) == 1:
        return folder / names[0]
    if not names:
        raise InputError(
            f"{folder}: contains no checkpoint; expected a file such as bert_model.ckpt.index"
        )
    raise InputError(
        f"{folder}: contains several checkpoints ({', '.join(names)}); expected the path of one of "
        "them"
    )


class GoogleWeights(StoredWeights):
    """The weights of a TF1 checkpoint."""

    names = (
        ("^encoder/(embeddings|pooler)/", r"bert/\1/"),
        ("^encoder/", "bert/encoder/"),
        ("^masked_lm/(dense|LayerNorm)/", r"cls/predictions/transform/\1/"),
        ("^masked_lm/", "cls/predictions/"),
        ("^next_sentence/", "cls/seq_relationship/output_"),
        ("^classifier/", "output_"),
        ("^span/", "cls/squad/output_"),
        ("output_kernel$", "output_weights"),
    )
    encoder_prefix = "bert/"

    def __init__(self, prefix: Path):
        import tensorflow as tf

        super().__init__(prefix)
        # A damaged file raises any of these, depending on where it is damaged.
        self._failures = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
        try:
            self._reader = tf.train.load_checkpoint(self.source)
            shapes = self._reader.get_variable_to_shape_map()
        except self._failures as error:
            raise InputError(f"{prefix}: not a valid TF1 checkpoint ({error})") from None
        if any(".ATTRIBUTES/" in name for name in shapes):
            raise InputError(
                f"{prefix}: is a TF2 object checkpoint; expected a TF1 checkpoint with Google's "
                "names, such as bert/embeddings/word_embeddings"
            )
        self.shapes = {
            name: tuple(shapes[name]) for name in sorted(shapes) if not _SLOT.search(name)
        }
        self.skipped = len(shapes) - len(self.shapes)

    @classmethod
    def is_transposed(cls, path: str) -> bool:
        """Returns whether Google stores a kernel as [out, in]: those of the heads but masked LM."""
        return path in ("next_sentence/kernel", "classifier/kernel", "span/kernel")

    def read(self, name: str) -> np.ndarray:
        """Reads a stored array."""
        try:
            return self._reader.get_tensor(name)
        except self._failures as error:
            raise InputError(f"{self.source}: {name} cannot be read ({error})") from None


# --- KerasHub presets ---

# KerasHub always computes the tanh approximation of gelu. HDF5 files can refer to other files;
# such weights are rejected.
_HUB_VOCAB = "assets/tokenizer/vocabulary.txt"
_HUB_WEIGHTS, _TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"

# Config keys of this library -> the keys of a KerasHub backbone.
KERAS_HUB_SIZES = {
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
_KERAS_HUB_FIXED = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12, "initializer_range": 0.02}

# Keys of tokenizer.json, each with the only value that matches BERT's tokenizer.
_TOKENIZER_RULES = (
    ("class_name", "BertTokenizer"),
    ("split", True),
    ("suffix_indicator", "##"),
    ("oov_token", "[UNK]"),
    ("special_tokens_in_strings", False),
)

# A damaged file raises any of these: names that are not UTF-8, types that NumPy does not have.
_HDF5_FAILURES = (OSError, RuntimeError, KeyError, TypeError, ValueError)


def is_keras_hub_preset(path: Path) -> bool:
    """Returns whether a folder is a preset: config.json has the keys class_name and config."""
    return (path / CONFIG).is_file() and {"class_name", "config"} <= read_json(path / CONFIG).keys()


def open_keras_hub_preset(path: Path) -> Checkpoint:
    """Opens a preset without reading its weights."""
    preset = read_json(path / CONFIG)
    if preset["class_name"] != "BertBackbone" or not isinstance(preset["config"], dict):
        raise InputError(
            f"{path / CONFIG}: class_name is {preset['class_name']!r}; expected 'BertBackbone'"
        )
    if not (path / _HUB_WEIGHTS).is_file():
        raise InputError(
            f"{path}: has no {_HUB_WEIGHTS}; expected a KerasHub preset with all weights in one "
            "file"
        )
    backbone = preset["config"]
    sizes = {
        ours: backbone[theirs] for ours, theirs in KERAS_HUB_SIZES.items() if theirs in backbone
    }
    dropout = {"attention_probs_dropout_prob": backbone.get("dropout", 0.1)}
    settings = dropout | _KERAS_HUB_FIXED | sizes
    config = config_of(path / CONFIG, settings)
    vocab = read_vocab(path / _HUB_VOCAB, config.vocab_size)
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
    file = path / FAST_TOKENIZER
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


class KerasHubWeights(StoredWeights):
    """The weights of a preset, in model.weights.h5 and, for a head, in task.weights.h5.

    The variables of a layer are numbered, a kernel or scale before its bias. Heads that KerasHub
    does not have keep names that are in no file.

    Args:
        path: the folder of the preset.
        heads: the number N of attention heads. Of their kernels, [H, H], the files have [H, N, D],
            and of that of their output [N, D, H].
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
        for part, file in (("backbone", path / _HUB_WEIGHTS), ("task", path / _TASK_WEIGHTS)):
            if file.is_file():
                try:
                    opened = self._files.enter_context(h5py.File(file, "r"))
                    opened.visititems(partial(self._add, part, file))
                except InputError:
                    raise
                except _HDF5_FAILURES as error:
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
        except _HDF5_FAILURES as error:
            raise InputError(f"{self.source}: {value.name} cannot be read ({error})") from None
        return array.view(ml_dtypes.bfloat16) if is_bfloat16 else array
