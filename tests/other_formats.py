"""Writes checkpoints of other formats, which the tests open.

Each function has the arguments of `save_model_directory`, and writes the files of Google's code or
KerasHub; for Google's, with further settings under the keys of earlier versions of this library.
"""

import json
from pathlib import Path

import h5py
import keras
import numpy as np

from keras_bert.checkpoints.hugging_face import label_settings, save_model_directory
from keras_bert.checkpoints.open import KERAS_HUB_SIZES, GoogleWeights, KerasHubWeights
from keras_bert.checkpoints.weights import StoredWeights, weights_of
from keras_bert.text.settings import TokenizerSettings

DEFAULT = TokenizerSettings()


def write_tf1(
    folder: Path, model: keras.Model, vocab=None, tokenizer_settings=DEFAULT, **content
) -> None:
    """Writes a TF1 checkpoint: bert_config.json, vocab.txt and bert_model.ckpt."""
    import tensorflow as tf

    folder.mkdir(parents=True)
    num_labels = getattr(model, "num_labels", None)
    settings = {
        "architectures": [model.architecture],
        **label_settings(content.get("labels"), num_labels, content.get("problem_type")),
        **model.config.to_dict(),
        **content.get("extra", {}),
        **tokenizer_settings.non_default(),
        "do_lower_case": tokenizer_settings.do_lower_case,
        "hidden_act": "gelu",
    }
    if model.config.hidden_act != "gelu_new":
        settings["keras_bert_hidden_act"] = model.config.hidden_act
    write_json(folder / "bert_config.json", settings)
    write_vocab(folder / "vocab.txt", vocab)
    arrays = stored_arrays(model, GoogleWeights)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=list(arrays.values()),
    )


def write_keras_hub(
    folder: Path, model: keras.Model, vocab=None, tokenizer_settings=DEFAULT
) -> None:
    """Writes a KerasHub preset."""
    folder.mkdir(parents=True)
    settings = model.config.to_dict()
    backbone = {theirs: settings[ours] for ours, theirs in KERAS_HUB_SIZES.items()}
    write_json(folder / "config.json", {"class_name": "BertBackbone", "config": backbone})
    keys = {
        "lowercase": tokenizer_settings.do_lower_case,
        "strip_accents": tokenizer_settings.strips_accents,
    }
    keys["split_on_cjk"] = tokenizer_settings.tokenize_chinese_chars
    write_json(folder / "tokenizer.json", {"class_name": "BertTokenizer", "config": keys})
    write_vocab(folder / "assets" / "tokenizer" / "vocabulary.txt", vocab)
    files = {"backbone": "model.weights.h5", "task": "task.weights.h5"}
    stored = KerasHubWeights(folder, model.config.num_attention_heads)
    for name, value in stored_arrays(model, stored).items():
        part, _, name = name.partition("/")
        if part not in files:
            continue  # KerasHub does not have this head.
        with h5py.File(folder / files[part], "a") as file:
            # The checksum detects damaged data; HDF5 has none for scalars.
            file.create_dataset(name, data=value, fletcher32=value.ndim > 0 or None)


WRITERS = {
    "hugging_face": save_model_directory,
    "tf1": write_tf1,
    "keras_hub": write_keras_hub,
}


def stored_arrays(
    model: keras.Model, stored: StoredWeights | type[StoredWeights]
) -> dict[str, np.ndarray]:
    arrays = {}
    for path, value in weights_of(model).items():
        value = value.T if stored.is_transposed(path) else value
        if isinstance(stored, StoredWeights):
            value = value.reshape(stored.stored_shape(path, value.shape))
        arrays[stored.name(path)] = value
    return arrays


def write_vocab(path: Path, vocab: list[str] | None) -> None:
    if vocab is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{token}\n" for token in vocab))


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content))
