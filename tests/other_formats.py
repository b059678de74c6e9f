"""Writes checkpoints of other formats, which the tests open.

Each function has the arguments of `save_model_directory`, and writes the files of Google's code or
KerasHub; for Google's, with further settings under the keys of earlier versions of this library.
"""

import json
from pathlib import Path

import h5py
import keras
import numpy as np

from keras_bert.checkpoints import google, keras_hub
from keras_bert.checkpoints.checkpoint import ModelDescription
from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.weights import Layout, weights_of


def write_tf1(folder: Path, model: keras.Model, description: ModelDescription) -> None:
    """Writes a TF1 checkpoint: bert_config.json, vocab.txt and bert_model.ckpt."""
    import tensorflow as tf

    folder.mkdir(parents=True)
    tokenizer = description.tokenizer_settings
    settings = settings_of(model, description) | tokenizer.non_default()
    settings |= {"do_lower_case": tokenizer.do_lower_case, "hidden_act": "gelu"}
    if description.config.hidden_act != "gelu_new":
        settings["keras_bert_hidden_act"] = description.config.hidden_act
    write_json(folder / "bert_config.json", settings)
    write_vocab(folder / "vocab.txt", description)
    arrays = stored_arrays(model, google.LAYOUT)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=list(arrays.values()),
    )


def write_keras_hub(folder: Path, model: keras.Model, description: ModelDescription) -> None:
    """Writes a KerasHub preset."""
    folder.mkdir(parents=True)
    settings = settings_of(model, description)
    backbone = {theirs: settings[ours] for ours, theirs in keras_hub.SIZES.items()}
    write_json(folder / "config.json", {"class_name": "BertBackbone", "config": backbone})
    tokenizer = description.tokenizer_settings
    keys = {"lowercase": tokenizer.do_lower_case, "strip_accents": tokenizer.strips_accents}
    keys["split_on_cjk"] = tokenizer.tokenize_chinese_chars
    if tokenizer.user_tokens:
        keys["special_tokens"] = [token.content for token in tokenizer.user_tokens]
        keys["special_tokens_in_strings"] = True
    write_json(folder / "tokenizer.json", {"class_name": "BertTokenizer", "config": keys})
    write_vocab(folder / "assets" / "tokenizer" / "vocabulary.txt", description)
    files = {"backbone": "model.weights.h5", "task": "task.weights.h5"}
    arrays = stored_arrays(model, keras_hub.layout_of(description.config))
    for name, value in arrays.items():
        if name.startswith("heads/"):
            continue  # KerasHub does not have this head.
        part, _, name = name.partition("/")
        with h5py.File(folder / files[part], "a") as file:
            # The checksum detects damaged data; HDF5 has none for scalars.
            file.create_dataset(name, data=value, fletcher32=value.ndim > 0 or None)


WRITERS = {
    "hugging_face": save_model_directory,
    "tf1": write_tf1,
    "keras_hub": write_keras_hub,
}


def settings_of(model: keras.Model, description: ModelDescription) -> dict:
    num_labels = getattr(model, "num_labels", None)
    return description.hugging_face_settings(model.architecture, num_labels)


def stored_arrays(model: keras.Model, layout: Layout) -> dict[str, np.ndarray]:
    weights = weights_of(model).items()
    return {layout.name(path): layout.store(path, value) for path, value in weights}


def write_vocab(path: Path, description: ModelDescription) -> None:
    if description.vocab is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{token}\n" for token in description.vocab))


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content))
