"""Opens checkpoints of all formats, also those that a run saves while it trains."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from absl import logging

from keras_bert.checkpoints import keras_hub
from keras_bert.checkpoints.checkpoint import Checkpoint
from keras_bert.checkpoints.google import is_google_checkpoint, open_google_checkpoint
from keras_bert.checkpoints.hub import local_model
from keras_bert.checkpoints.hugging_face import CONFIG, INDEX, open_file, open_model_directory
from keras_bert.checkpoints.weights import WEIGHTS, StoredWeights
from keras_bert.errors import InputError
from keras_bert.files import read_json, sha256
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

    Raises:
        InputError: the path is not a checkpoint, the checkpoint is inconsistent, or another
            argument does not match it.
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
    elif keras_hub.is_keras_hub_preset(path):
        checkpoint = keras_hub.open_keras_hub_preset(path)
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
    weights = (WEIGHTS, INDEX, keras_hub.WEIGHTS)
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


def _open_training_checkpoint(path: Path) -> Checkpoint:
    """Opens a training checkpoint, OUT/checkpoints/step-NNNNNNNN, without reading its weights.

    Such a folder has only the weights and the optimizer's state. Config, vocabulary, casing and
    labels are those of OUT/model, so the run must be finished.

    Raises:
        InputError: the folder is not in the folder of a finished run, or the model of the run
            cannot be opened.
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
    """The weights of a training checkpoint, with the variable paths and arrays of this library.

    Raises:
        InputError: the file is damaged.
    """

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
