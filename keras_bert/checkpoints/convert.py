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

from keras_bert.checkpoints.checkpoint import UNTRAINED, Checkpoint
from keras_bert.checkpoints.hugging_face import (
    check_replaceable,
    label_settings,
    model_directory,
)
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.checkpoints.vocabulary_change import VocabChange, change_rows
from keras_bert.checkpoints.weights import LoadReport, weights_of
from keras_bert.errors import InputError
from keras_bert.models import NETWORKS, BertEncoder

_POSITIONS = "encoder/embeddings/position_embeddings"
# Entries of config.json that are not copied from the source.
_ALWAYS_WRITTEN = frozenset(
    """
    _name_or_path architectures dtype id2label label2id model_type num_labels pad_token_id
    position_embedding_type problem_type torch_dtype transformers_version
    """.split()  # noqa: SIM905
)
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
    config, vocab = checkpoint.config, checkpoint.vocab
    values = {name: value for name, value in (tokenizer or {}).items() if value is not None}
    tokenizer_settings = replace(checkpoint.tokenizer_settings, **values)
    written = config.to_dict().keys() | _ALWAYS_WRITTEN
    extra = {key: value for key, value in checkpoint.settings.items() if key not in written}
    if layers:
        _check_layers(layers, config.num_hidden_layers)
        config = replace(config, num_hidden_layers=len(layers))
    if positions:
        old = config.max_position_embeddings
        if positions <= old:
            raise InputError(
                f"--max_position_embeddings={positions}: the model has {old} positions; expected "
                "more"
            )
        config = replace(config, max_position_embeddings=positions)
        extra[UNTRAINED] = f"the table of positions was extended from {old} to {positions}"
        logging.warning("%s; train the model with texts of that length", extra[UNTRAINED])
    changed = None
    if change_vocab:
        old_vocab = checkpoint.require_vocab("the tokens cannot be changed")
        changed = change_vocab(old_vocab, tokenizer_settings)
        vocab, tokenizer_settings = changed.tokens, changed.settings
        logging.info(
            "the vocabulary has %d tokens, of which %d are new; that of the source has %d",
            *(len(vocab), len({*vocab} - {*old_vocab}), len(old_vocab)),
        )
        config = replace(config, vocab_size=len(vocab))
        for name, value in extra.items():
            if name.endswith("_token_id") and isinstance(value, int):
                is_kept = [value] in changed.sources
                extra[name] = changed.sources.index([value]) if is_kept else None

    model = _make_model(checkpoint) if heads else BertEncoder(checkpoint.config)
    report = checkpoint.load_into(model)
    weights = {path: value for path, value in weights_of(model).items() if path not in report.new}
    if changed:
        weights = change_rows(weights, changed)
    if layers:
        weights = _select_layers(weights, layers)
    if positions:
        weights[_POSITIONS] = new_positions(weights[_POSITIONS], positions)
    settings = {
        **label_settings(
            checkpoint.labels,
            getattr(model, "num_labels", None),
            checkpoint.problem_type if heads else None,
        ),
        **config.to_dict(),
        **extra,
    }
    architecture = _architecture(model, weights.keys())
    with model_directory(target, weights, architecture, settings, vocab, tokenizer_settings):
        pass
    return report


def _check_layers(layers: Sequence[int], count: int) -> None:
    is_sorted = all(a < b for a, b in itertools.pairwise(layers))
    if not is_sorted or layers[0] < 0 or layers[-1] >= count:
        raise InputError(
            f"--keep_layers={','.join(map(str, layers))}: the model has {count} layers; expected "
            f"different layers from 0 to {count - 1} in increasing order"
        )


def _make_model(checkpoint: Checkpoint) -> keras.Model:
    with checkpoint.open_weights() as stored:
        heads, num_labels = stored.heads, stored.num_labels
    matching = [network for network in NETWORKS if heads & {*network.heads}] or [BertEncoder]
    matching = [network for network in matching if network.heads == matching[0].heads]
    network = max(matching, key=lambda each: each.architecture == checkpoint.architecture)
    return network(checkpoint.config, *([num_labels] if "classifier" in network.heads else []))


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
