"""Converts a checkpoint to another format.

The weights stay the same, unless a change of the vocabulary, layers or positions is requested.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import keras
import numpy as np
from absl import logging
from safetensors import SafetensorError

from keras_bert.checkpoints import google, keras_hub
from keras_bert.checkpoints.checkpoint import ARCHITECTURES, UNTRAINED, Checkpoint
from keras_bert.checkpoints.google import write_google_checkpoint
from keras_bert.checkpoints.keras_hub import write_keras_hub_preset
from keras_bert.checkpoints.model_description import ModelDescription
from keras_bert.checkpoints.model_directory import (
    MODEL_FILES,
    check_replaceable,
    write_model_directory,
)
from keras_bert.checkpoints.open_checkpoint import open_checkpoint
from keras_bert.checkpoints.shape_change import (
    POSITIONS,
    extend_positions,
    keep_layers,
    new_positions,
    select_layers,
)
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


@dataclass(frozen=True)
class Changes:
    """The changes of a model that a conversion makes.

    Attributes:
        heads: whether to keep the heads, or only the encoder.
        tokenizer: {setting of the tokenizer: value}; None keeps the setting of the source.
        vocab: the change of the vocabulary; None for none.
        layers: the indices of the layers to keep, from 0; empty for all.
        positions: the new number of positions; 0 to keep it.
        positions_by: how the table of positions is extended, `interpolate` or `tile`.
    """

    heads: bool = True
    tokenizer: Mapping[str, bool | None] = field(default_factory=dict)
    vocab: VocabChange | None = None
    layers: Sequence[int] = ()
    positions: int = 0
    positions_by: str = "interpolate"


_NO_CHANGES = Changes()


def convert(
    source: Path, target: Path, to: str = "hugging_face", changes: Changes = _NO_CHANGES
) -> LoadReport:
    """Converts a checkpoint to another format; the target directory is written atomically.

    The weights are loaded into the smallest model class with the checkpoint's heads, and written in
    the format `to`: `hugging_face`, `tf1` or `keras_hub`. Weights that the checkpoint lacks are not
    written. The target may be the result of an earlier conversion to the same format, which is
    replaced. Returns the report of loading the source.

    Raises:
        InputError: the source cannot be opened or is inconsistent, a change is not possible, or the
            target cannot be written or contains other files.
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
    description, vocab = _changed_description(checkpoint, changes)
    model = _make_model(checkpoint) if changes.heads else BertEncoder(checkpoint.config)
    report = checkpoint.load_into(model)
    weights = {path: value for path, value in weights_of(model).items() if path not in report.new}
    weights = _changed_weights(weights, vocab, changes)
    settings = description.hugging_face_settings(
        _architecture(model, weights.keys()), getattr(model, "num_labels", None)
    )
    if to != "hugging_face":
        _warn(checkpoint, to)
    with atomic_path(target, failures=(SafetensorError, RuntimeError)) as folder:
        folder.mkdir()
        WRITERS[to](folder, weights, settings, description.vocab, description.tokenizer_settings)
    return report


def _changed_description(
    checkpoint: Checkpoint, changes: Changes
) -> tuple[ModelDescription, ChangedVocab | None]:
    """Returns the description of the converted model, and its vocabulary if that changes."""
    tokenizer = {name: value for name, value in changes.tokenizer.items() if value is not None}
    settings = replace(checkpoint.tokenizer_settings, **tokenizer)
    description = replace(checkpoint.description, tokenizer_settings=settings)
    config = description.config
    if changes.layers:
        where = f"--keep_layers={','.join(map(str, changes.layers))}"
        config = keep_layers(config, changes.layers, where)
    if changes.positions:
        where = f"--max_position_embeddings={changes.positions}"
        old, config = config, extend_positions(config, changes.positions, where)
        untrained = (
            f"the table of positions was extended from {old.max_position_embeddings} to "
            f"{changes.positions} ({changes.positions_by})"
        )
        logging.warning("%s; train the model with texts of that length", untrained)
        description = replace(description, extra={**description.extra, UNTRAINED: untrained})
    description = replace(description, config=config)
    if not changes.heads:
        description = replace(description, problem_type=None)
    if not changes.vocab:
        return description, None
    if checkpoint.vocab is None:
        raise InputError(f"{checkpoint.why_no_vocab}; the tokens cannot be changed")
    changed = changes.vocab(checkpoint.vocab, settings)
    logging.info(
        "the vocabulary has %d tokens, of which %d are new; that of the source has %d",
        len(changed.tokens),
        len({*changed.tokens} - {*checkpoint.vocab}),
        len(checkpoint.vocab),
    )
    return _with_vocab(description, changed), changed


def _changed_weights(
    weights: Mapping[str, np.ndarray], vocab: ChangedVocab | None, changes: Changes
) -> Mapping[str, np.ndarray]:
    if vocab:
        weights = change_rows(weights, vocab)
    if changes.layers:
        weights = select_layers(weights, changes.layers)
    if changes.positions:
        table = new_positions(weights[POSITIONS], changes.positions, changes.positions_by)
        weights = {**weights, POSITIONS: table}
    return weights


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
