"""Converts a checkpoint of any format to a Hugging Face directory.

The weights stay the same, unless a change of the vocabulary, layers or positions is requested:

    vocabulary   the rows of added tokens start as means, those of removed ones are omitted
    layers       0 1 2 3 4 5 -> the weights of 0, 2 and 4 as layers 0, 1 and 2
    positions    512 rows -> 1024 rows, interpolated between the old rows or repeating them

A change of layers or positions gives an initial model: it computes other outputs than its source,
and needs training.
"""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
from absl import logging
from safetensors import SafetensorError

from keras_bert.checkpoints.checkpoint import UNTRAINED, Checkpoint, ModelDescription
from keras_bert.checkpoints.hugging_face import check_replaceable, write_model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.checkpoints.vocabulary_change import ChangedVocab, VocabChange, change_rows
from keras_bert.checkpoints.weights import LoadReport, weights_of
from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from keras_bert.models import BertClassifier, BertPretrainer, BertSpanLabeler, BertTokenClassifier
from keras_bert.models.encoder import BertEncoder

_POSITIONS = "encoder/embeddings/position_embeddings"
_LAYER = re.compile(r"encoder/layer_(\d+)/")


def convert(
    source: Path,
    target: Path,
    *,
    heads: bool = True,
    tokenizer: Mapping[str, bool | None] | None = None,
    change_vocab: VocabChange | None = None,
    layers: Sequence[int] = (),
    positions: int = 0,
) -> LoadReport:
    """Converts a checkpoint to a Hugging Face directory, which is written atomically.

    The weights are loaded into the smallest model class with the checkpoint's heads. Weights that
    the checkpoint lacks are not written.

    Args:
        source: the path of a checkpoint of any format.
        target: the directory to write; an earlier model directory is replaced.
        heads: whether to keep the heads, or only the encoder.
        tokenizer: {setting of the tokenizer: value}; None keeps the setting of the source.
        change_vocab: makes the new vocabulary; None keeps the vocabulary.
        layers: the indices of the layers to keep, from 0 (the layer after the embeddings), in
            increasing order; empty for all.
        positions: the new number of positions, whose table is interpolated; 0 to keep it.

    Returns:
        The report of loading the source.

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
    check_replaceable(target)
    checkpoint = open_checkpoint(source)
    values = {name: value for name, value in (tokenizer or {}).items() if value is not None}
    description = replace(
        checkpoint.description, tokenizer_settings=replace(checkpoint.tokenizer_settings, **values)
    )
    if layers:
        description = _with_layers(description, layers)
    if positions:
        description = _with_positions(description, positions)
    if not heads:
        description = replace(description, problem_type=None)
    vocab = None
    if change_vocab:
        vocab = _changed_vocab(checkpoint, description, change_vocab)
        description = _with_vocab(description, vocab)

    model = _make_model(checkpoint) if heads else BertEncoder(checkpoint.config)
    report = checkpoint.load_into(model)
    weights = {path: value for path, value in weights_of(model).items() if path not in report.new}
    if vocab:
        weights = change_rows(weights, vocab)
    if layers:
        weights = _select_layers(weights, layers)
    if positions:
        table = weights[_POSITIONS]
        weights[_POSITIONS] = new_positions(table, positions)
    settings = description.hugging_face_settings(
        _architecture(model, weights.keys()), getattr(model, "num_labels", None)
    )
    with atomic_path(target, failures=(SafetensorError,)) as folder:
        folder.mkdir()
        write_model_directory(
            folder, weights, settings, description.vocab, description.tokenizer_settings
        )
    return report


def _with_layers(description: ModelDescription, layers: Sequence[int]) -> ModelDescription:
    count = description.config.num_hidden_layers
    is_sorted = all(a < b for a, b in itertools.pairwise(layers))
    if not is_sorted or layers[0] < 0 or layers[-1] >= count:
        raise InputError(
            f"--keep_layers={','.join(map(str, layers))}: the model has {count} layers; expected "
            f"different layers from 0 to {count - 1} in increasing order"
        )
    config = replace(description.config, num_hidden_layers=len(layers))
    return replace(description, config=config)


def _with_positions(description: ModelDescription, count: int) -> ModelDescription:
    old = description.config.max_position_embeddings
    if count <= old:
        raise InputError(
            f"--max_position_embeddings={count}: the model has {old} positions; expected more"
        )
    untrained = f"the table of positions was extended from {old} to {count}"
    logging.warning("%s; train the model with texts of that length", untrained)
    return replace(
        description,
        config=replace(description.config, max_position_embeddings=count),
        extra={**description.extra, UNTRAINED: untrained},
    )


def _changed_vocab(
    checkpoint: Checkpoint, description: ModelDescription, change_vocab: VocabChange
) -> ChangedVocab:
    vocab = checkpoint.require_vocab("the tokens cannot be changed")
    changed = change_vocab(vocab, description.tokenizer_settings)
    logging.info(
        "the vocabulary has %d tokens, of which %d are new; that of the source has %d",
        len(changed.tokens),
        len({*changed.tokens} - {*vocab}),
        len(vocab),
    )
    return changed


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
        heads, num_labels = stored.heads, stored.num_labels
    if "classifier" in heads:
        labels_tokens = checkpoint.architecture == BertTokenClassifier.architecture
        network = BertTokenClassifier if labels_tokens else BertClassifier
        return network(checkpoint.config, num_labels)
    if "span" in heads:
        return BertSpanLabeler(checkpoint.config)
    return BertPretrainer(checkpoint.config) if heads else BertEncoder(checkpoint.config)


def _architecture(model: keras.Model, paths: Collection[str]) -> str:
    if model.architecture == "BertForPreTraining":
        if "next_sentence/bias" not in paths:
            return "BertLMHeadModel" if model.config.is_decoder else "BertForMaskedLM"
        if "masked_lm/output_bias" not in paths:
            return "BertForNextSentencePrediction"
    return model.architecture


def _select_layers(
    weights: Mapping[str, np.ndarray], layers: Sequence[int]
) -> dict[str, np.ndarray]:
    """Returns the weights {variable path: array} without those of the other layers.

    The given layers get the indices 0, 1, and so on; other weights stay as they are.
    """
    new_index = {old: new for new, old in enumerate(layers)}
    selected = {}
    for path, value in weights.items():
        match = _LAYER.match(path)
        if match is None:
            selected[path] = value
        elif int(match[1]) in new_index:
            rest = path[match.end() :]
            selected[f"encoder/layer_{new_index[int(match[1])]}/{rest}"] = value
    return selected


def new_positions(table: np.ndarray, count: int) -> np.ndarray:
    """Interpolates a table of position embeddings, [positions, H], to `count` rows.

    Its first and last row stay the first and the last (linear, as Chen et al. 2023 do for rotary
    positions).
    """
    old = len(table)
    positions = np.linspace(0.0, old - 1.0, count)
    lower = np.minimum(positions.astype(np.int64), old - 1)
    upper = np.minimum(lower + 1, old - 1)
    share = (positions - lower)[:, np.newaxis]
    return ((1.0 - share) * table[lower] + share * table[upper]).astype(table.dtype)
