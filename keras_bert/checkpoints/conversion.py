"""Converts a checkpoint to another format.

The weights stay the same, unless tokens are added to or removed from the vocabulary.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import keras
from absl import logging
from safetensors import SafetensorError

from keras_bert.checkpoints import google, keras_hub
from keras_bert.checkpoints.checkpoint import ARCHITECTURES, Checkpoint
from keras_bert.checkpoints.google import write_google_checkpoint
from keras_bert.checkpoints.keras_hub import write_keras_hub_preset
from keras_bert.checkpoints.model_description import ModelDescription
from keras_bert.checkpoints.model_directory import (
    MODEL_FILES,
    check_replaceable,
    write_model_directory,
)
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.checkpoints.vocab_change import ChangedVocab, VocabChange, change_rows
from keras_bert.checkpoints.weights import LoadReport, weights_of
from keras_bert.common.errors import InputError
from keras_bert.common.files import atomic_path
from keras_bert.models import BertClassifier, BertPretrainer, BertSpanLabeler, BertTokenClassifier
from keras_bert.models.encoder import BertEncoder

# Format -> the function that writes it to an empty folder.
WRITERS = {
    "hugging_face": write_model_directory,
    "tf1": write_google_checkpoint,
    "keras_hub": write_keras_hub_preset,
}
_FILES = {
    "hugging_face": MODEL_FILES,
    "tf1": google.FILES,
    "keras_hub": keras_hub.FILES,
}


def convert(
    source: Path,
    target: Path,
    to: str = "hugging_face",
    heads: bool = True,
    tokenizer: Mapping[str, bool | None] = MappingProxyType({}),
    vocab_change: VocabChange | None = None,
) -> LoadReport:
    """Converts a checkpoint to another format; the target directory is written atomically.

    The weights are loaded into the smallest model class with the checkpoint's heads, and written in
    the format `to`: `hugging_face`, `tf1` or `keras_hub`. Weights that the checkpoint lacks are not
    written. Without `heads`, only the encoder is converted. `tokenizer` corrects settings of the
    source's tokenizer, by name; None keeps a setting. `vocab_change` adds or removes tokens. The
    target may be the result of an earlier conversion to the same format, which is replaced. Returns
    the report of loading the source.

    Raises:
        InputError: the source cannot be opened or is inconsistent, or the target cannot be written
            or contains other files.
    """
    target = target.absolute()
    if source.absolute() == target:
        raise InputError(f"{target}: is both source and target; expected another target directory")
    if source.is_dir() and source.resolve() in target.resolve().parents:
        raise InputError(
            f"{target}: is inside the source; expected a directory outside of {source}"
        )
    check_replaceable(target, _FILES[to])
    checkpoint = open_checkpoint(source)
    changes = {name: value for name, value in tokenizer.items() if value is not None}
    tokenizer_settings = replace(checkpoint.tokenizer_settings, **changes)
    description = replace(checkpoint.description, tokenizer_settings=tokenizer_settings)
    changed = None
    if vocab_change:
        if checkpoint.vocab is None:
            raise InputError(f"{checkpoint.why_no_vocab}; the tokens cannot be changed")
        changed = vocab_change(checkpoint.vocab, tokenizer_settings)
        logging.info(
            "the vocabulary has %d tokens, of which %d are new; that of the source has %d",
            len(changed.tokens),
            len({*changed.tokens} - {*checkpoint.vocab}),
            len(checkpoint.vocab),
        )
        description = _with_vocab(description, changed)
        tokenizer_settings = changed.settings
    model = _make_model(checkpoint) if heads else BertEncoder(checkpoint.config)
    report = checkpoint.load_into(model)
    weights = {path: value for path, value in weights_of(model).items() if path not in report.new}
    if changed:
        weights = change_rows(weights, changed)
    if not heads:
        description = replace(description, problem_type=None)
    settings = description.hugging_face_settings(
        _architecture(model, weights.keys()), getattr(model, "num_labels", None)
    )
    if to != "hugging_face":
        _warn(checkpoint, to)
    with atomic_path(target, failures=(SafetensorError, RuntimeError)) as folder:
        folder.mkdir()
        WRITERS[to](folder, weights, settings, description.vocab, tokenizer_settings)
    return report


def _with_vocab(description: ModelDescription, changed: ChangedVocab) -> ModelDescription:
    """Replaces the vocabulary of a model, and the token ids in other settings of config.json."""
    size = len(changed.tokens)
    extra = dict(description.extra)
    for name, value in description.extra.items():
        if name.endswith("_token_id") and isinstance(value, int):
            extra[name] = changed.new_id(value)
    config = replace(description.config, vocab_size=size)
    return replace(
        description,
        config=config,
        vocab=changed.tokens,
        tokenizer_settings=changed.settings,
        extra=extra,
    )


def _make_model(checkpoint: Checkpoint) -> keras.Model:
    with checkpoint.open_weights() as stored:
        has = {head: stored.has(f"{head}/bias") for head in ("next_sentence", "span")}
        has["masked_lm"] = stored.has("masked_lm/output_bias")
        num_labels = stored.num_labels
    if num_labels is not None:
        labels_tokens = checkpoint.architecture == ARCHITECTURES["BertTokenClassifier"]
        kind = BertTokenClassifier if labels_tokens else BertClassifier
        return kind(checkpoint.config, num_labels)
    if has["span"]:
        return BertSpanLabeler(checkpoint.config)
    if has["masked_lm"] or has["next_sentence"]:
        return BertPretrainer(checkpoint.config)
    return BertEncoder(checkpoint.config)


def _architecture(model: keras.Model, paths: Collection[str]) -> str:
    if isinstance(model, BertPretrainer) and "next_sentence/bias" not in paths:
        return "BertLMHeadModel" if model.config.is_decoder else "BertForMaskedLM"
    if isinstance(model, BertPretrainer) and "masked_lm/output_bias" not in paths:
        return "BertForNextSentencePrediction"
    return ARCHITECTURES[type(model).__name__]


def _warn(checkpoint: Checkpoint, to: str) -> None:
    """Warns about settings that the other library ignores; this library still reads them."""
    other = {"tf1": "Google's code", "keras_hub": "KerasHub"}[to]
    if checkpoint.config.hidden_act not in ("gelu_new", "gelu_tanh"):
        act = checkpoint.config.hidden_act
        if act == "gelu" or to == "keras_hub":
            logging.warning(
                "hidden_act is %s, but %s computes the tanh approximation of gelu, so its outputs "
                "will differ",
                act,
                other,
            )
    if checkpoint.config.layer_norm_eps != 1e-12:
        eps = checkpoint.config.layer_norm_eps
        logging.warning(
            "layer_norm_eps of the checkpoint is %g, but %s always computes with 1e-12, so the "
            "converted model will give other outputs there",
            eps,
            other,
        )
    if checkpoint.config.is_decoder:
        logging.warning(
            "is_decoder is true, but %s attends to the tokens on both sides, so its outputs will "
            "differ",
            other,
        )
