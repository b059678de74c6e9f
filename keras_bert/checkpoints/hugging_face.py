"""Reads and writes Hugging Face model directories, which transformers can open too.

The weights are in `model.safetensors`, or in `model.safetensors.index.json` and the shards that it
lists; they are always written to a single file. Variable paths follow Google's checkpoints. Kernels
are [in, out]; Hugging Face stores the transpose. Pickle files are never read.
"""

import contextlib
import json
import os
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_bert.checkpoints.checkpoint import Checkpoint, config_of
from keras_bert.checkpoints.earlier_run import SETTINGS_KEY
from keras_bert.checkpoints.sentence_transformers import (
    CROSS_ENCODER,
    SENTENCE_TRANSFORMER_FILES,
    lower_cases,
    read_cross_encoder,
    read_modules,
    transformer_folder,
    write_sentence_transformer,
)
from keras_bert.checkpoints.tokenizer_files import (
    CONFIG,
    FAST_TOKENIZER,
    TOKENIZER,
    VOCAB,
    read_tokenizer,
    write_tokenizer,
)
from keras_bert.checkpoints.weights import WEIGHTS, StoredWeights, weights_of
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
    settings |= read_cross_encoder(directory, settings)
    act = settings.get("hidden_act", "gelu")  # Hugging Face's default is the exact gelu, with erf.
    act = _ACTIVATIONS_READ.get(act, act) if isinstance(act, str) else act
    config = config_of(path / CONFIG, {**settings, "hidden_act": act})
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
        open_weights=partial(HuggingFaceWeights, directory),
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


# --- saving ---


def save_model_directory(
    path: str | os.PathLike,
    model: keras.Model,
    vocab: Sequence[str] | None = None,
    tokenizer_settings: TokenizerSettings = TokenizerSettings(),  # noqa: B008 (frozen)
    *,
    labels: Sequence[str] | None = None,
    problem_type: str | None = None,
    extra: Mapping[str, Any] = types.MappingProxyType({}),
    card: str = "",
    sentence_transformer: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model directory atomically; replaces an earlier one at the same path.

    Without `vocab`, the model has no tokenizer files.

    `labels` are the names of a classifier's labels in the order of its logits; None means LABEL_0,
    LABEL_1, ... `problem_type` is a classifier's loss, as named in transformers
    (`single_label_classification`, `multi_label_classification` or `regression`), or `reranking`.
    `extra` are additional entries of config.json, and `card` is the model card in Markdown.
    `sentence_transformer` are settings as from `read_sentence_transformer`, if
    sentence-transformers can open the model.
    """
    if vocab is not None:
        model.config.check_vocab_size(len(vocab), Path(path).absolute() / VOCAB)
    settings = {
        **label_settings(labels, getattr(model, "num_labels", None), problem_type),
        **model.config.to_dict(),
        **extra,
    }
    weights = weights_of(model)
    dense = {name: weights.pop(name) for name in [*weights] if "/dense_" in name}
    with model_directory(
        path, weights, model.architecture, settings, vocab, tokenizer_settings
    ) as folder:
        if card:
            write_bytes(folder / MODEL_CARD, card.encode())
        if sentence_transformer:
            width = model.config.hidden_size
            write_sentence_transformer(folder, sentence_transformer, width, dense)


def label_settings(
    labels: Sequence[str] | None, num_labels: int | None, problem_type: str | None
) -> dict[str, Any]:
    """Returns config.json's entries for a classifier's labels; `num_labels` is None without one."""
    settings: dict[str, Any] = {}
    if num_labels is not None:
        names = labels or [f"LABEL_{index}" for index in range(num_labels)]
        if len(names) != num_labels:
            raise ValueError(f"{len(names)} label names for {num_labels} logits")
        settings["id2label"] = {str(index): name for index, name in enumerate(names)}
        settings["label2id"] = {name: index for index, name in enumerate(names)}
    if problem_type == "reranking":
        problem_type = "multi_label_classification"  # The same loss in transformers.
    return settings if problem_type is None else {**settings, "problem_type": problem_type}


@contextlib.contextmanager
def model_directory(
    path: str | os.PathLike,
    weights: Mapping[str, np.ndarray],
    architecture: str,
    settings: Mapping[str, Any],
    vocab: Sequence[str] | None,
    tokenizer_settings: TokenizerSettings,
) -> Iterator[Path]:
    """Writes a model directory, which appears at the end of the block with what the block adds.

    `weights` are {variable path: float32 array}, `architecture` is the transformers class with the
    model's heads, and `settings` are the other entries of config.json. Without `vocab`, no
    tokenizer files are written. Yields the folder that becomes the directory.
    """
    path = Path(path).absolute()
    check_replaceable(path)
    settings = {
        "architectures": [architecture],
        "model_type": "bert",
        "pad_token_id": vocab.index("[PAD]") if vocab else 0,
        "position_embedding_type": "absolute",
        "dtype": "float32",
        **settings,
    }
    act = settings["hidden_act"]
    settings["hidden_act"] = _ACTIVATIONS_WRITTEN.get(act, act)
    stored = HuggingFaceWeights
    arrays = {
        stored.name(variable): np.ascontiguousarray(
            value.T if stored.is_transposed(variable) else value
        )
        for variable, value in weights.items()
    }
    with atomic_path(path, failures=(SafetensorError,)) as folder:
        folder.mkdir()
        write_json(folder / CONFIG, settings)
        if vocab is not None:
            length = settings["max_position_embeddings"]
            if CROSS_ENCODER in settings:  # sentence-transformers truncates pairs to this length.
                length = (settings.get(SETTINGS_KEY) or {}).get("max_seq_length", length)
            write_tokenizer(folder, vocab, tokenizer_settings, length)
        file = folder / WEIGHTS
        file.touch()
        mode = file.stat().st_mode
        # transformers rejects a file whose metadata do not name the framework.
        save_file(arrays, file, metadata={"format": "pt"})
        file.chmod(mode)  # save_file makes the file readable only by its owner.
        yield folder


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


# --- the weights ---


# Older names: files of 2018 and 2019 name the variables of LayerNorm as Google does, and some files
# contain the masked-LM head's output bias only under the decoder's name. In a file of a model
# without heads, the encoder's names have no prefix.
_OLDER_NAMES = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
    (r"^cls\.predictions\.decoder\.bias$", "cls.predictions.bias"),
    (r"^(embeddings|encoder|pooler)\.", r"bert.\1."),
)


class HuggingFaceWeights(StoredWeights):
    """The weights of a model directory, in one file or in the shards that an index lists.

    Those of the Dense modules of sentence-transformers, which have files of their own, are named
    dense.0.weight, dense.0.bias, dense.1.weight and so on.
    """

    names = (
        ("^encoder/embeddings/", "bert.embeddings."),
        (r"^encoder/layer_(\d+)/", r"bert.encoder.layer.\1."),
        ("^encoder/pooler/", "bert.pooler."),
        (r"^encoder/dense_(\d+)/", r"dense.\1."),
        ("^masked_lm/(dense|LayerNorm)/", r"cls.predictions.transform.\1."),
        ("^masked_lm/", "cls.predictions."),
        ("^next_sentence/", "cls.seq_relationship."),
        ("^span/", "qa_outputs."),
        ("_embeddings$", "_embeddings.weight"),
        ("(gamma|kernel)$", "weight"),
        ("(beta|output_bias)$", "bias"),
        ("/", "."),
    )
    encoder_prefix = "bert."
    buffers = frozenset({"bert.embeddings.position_ids", "bert.embeddings.token_type_ids"})
    tied_decoder = "cls.predictions.decoder.weight"

    def __init__(self, model_dir: Path):
        folder = transformer_folder(model_dir)
        super().__init__(folder / (WEIGHTS if (folder / WEIGHTS).is_file() else INDEX))
        self._arrays: dict[str, tuple[safe_open, str]] = {}  # The file, and the name in it.
        source = Path(self.source)
        if source.name == INDEX:
            names = _read_index(source)
            for path in sorted({folder / name for name in names.values()}):
                self._add(path, _OLDER_NAMES)
            stored = {name for _, name in self._arrays.values()}
            if names.keys() != stored:
                raise InputError(
                    f"{source}: weight_map and the files contain different weights: "
                    f"{', '.join(sorted(names.keys() ^ stored))}; expected the same names in both"
                )
        else:
            self._add(source, _OLDER_NAMES)
        modules = [module for kind, module in read_modules(model_dir) if kind == "Dense"]
        for index, module in enumerate(modules):
            if (module / WEIGHTS).is_file():
                self._add(module / WEIGHTS, [("^linear", f"dense.{index}")])

    def _add(self, path: Path, renaming: Sequence[tuple[str, str]]) -> None:
        file = self._files.enter_context(open_file(path))
        for name in file.keys():  # noqa: SIM118
            current = name
            for pattern, replacement in renaming:
                current = re.sub(pattern, replacement, current)
            self._arrays[current] = (file, name)
            self.shapes[current] = tuple(file.get_slice(name).get_shape())

    @classmethod
    def is_transposed(cls, path: str) -> bool:
        """Returns whether a variable is a kernel, which is stored as [out, in]."""
        return path.endswith("/kernel")

    def name_in_file(self, name: str) -> str:
        """Returns the name of a weight in the file, which may be an older name."""
        is_older = name in self._arrays and not name.startswith("dense.")
        return self._arrays[name][1] if is_older else name

    def read(self, name: str) -> np.ndarray:
        """Reads a stored array."""
        file, name_in_file = self._arrays[name]
        try:
            return file.get_tensor(name_in_file)
        except (AttributeError, TypeError):  # NumPy has no 8-bit floats.
            raise self.wrong_type(name, file.get_slice(name_in_file).get_dtype()) from None


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
    return shard_of
