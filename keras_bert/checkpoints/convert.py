"""Converts a checkpoint of any format to a Hugging Face directory.

The weights stay the same, unless a change of the vocabulary, layers or positions is requested:

    grown        "encephalitis" -> mean of the rows of "en" "##ce" "##pha" "##lit" "##is"
    shrunk       the rows of the tokens that stay
    layers       0 1 2 3 4 5 -> the weights of 0, 2 and 4 as layers 0, 1 and 2
    positions    512 rows -> 1024 rows, interpolated between the old rows or repeating them

A change of layers or positions gives an initial model: it computes other outputs than its source,
and needs training.
"""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from absl import logging

from keras_bert.checkpoints.checkpoint import UNTRAINED, Checkpoint
from keras_bert.checkpoints.hugging_face import check_replaceable, label_settings, model_directory
from keras_bert.checkpoints.open import open_checkpoint
from keras_bert.checkpoints.weights import LoadReport, weights_of
from keras_bert.errors import InputError
from keras_bert.models import NETWORKS, BertEncoder
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS, first_difference

_POSITIONS = "encoder/embeddings/position_embeddings"
# Entries of config.json that are not copied from the source.
_ALWAYS_WRITTEN = frozenset(
    """
    _name_or_path architectures dtype id2label label2id model_type num_labels pad_token_id
    position_embedding_type problem_type torch_dtype transformers_version
    """.split()  # noqa: SIM905
)
_LAYER = re.compile(r"encoder/layer_(\d+)/")


class ChangedVocab(NamedTuple):
    """A new vocabulary, and the rows of the old one from which its rows are made.

    Attributes:
        tokens: the V' tokens in the order of their ids.
        sources: for each token, the ids in the old vocabulary whose rows are averaged; an id alone
            is a row that does not change.
    """

    tokens: list[str]
    sources: list[list[int]]
    settings: TokenizerSettings


# Makes the new vocabulary from the old one and the settings of the tokenizer.
VocabChange = Callable[[Sequence[str], TokenizerSettings], ChangedVocab]


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
    the checkpoint lacks are not written. An earlier model directory at `target` is replaced.

    Args:
        source: the path of a checkpoint of any format.
        target: the directory to write.
        heads: whether to keep the heads, or only the encoder.
        tokenizer: {setting of the tokenizer: value}; None keeps the setting of the source.
        change_vocab: makes the new vocabulary; None keeps the vocabulary.
        layers: the indices of the layers to keep, from 0 (the layer after the embeddings), in
            increasing order; empty for all.
        positions: the new number of positions, whose table is interpolated; 0 to keep it.

    Returns:
        The report of loading the source.
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
    """Returns the weights {variable path: array} without those of the other layers."""
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


# --- changes of the vocabulary ---

# The variables with a row for each token; the masked-LM head shares the word embeddings.
_ROWS = ("encoder/embeddings/word_embeddings", "masked_lm/output_bias")


def add_tokens(
    vocab: Sequence[str], settings: TokenizerSettings, tokens: Sequence[str], where: str
) -> ChangedVocab:
    """Appends tokens at the end of a vocabulary; error messages start with `where`."""
    _check_new(tokens, vocab, where, "in the vocabulary")
    check_are_words(tokens, BertTokenizer(vocab, **settings.to_dict()), where)
    return _appended(vocab, settings, tokens, settings)


def add_user_tokens(
    vocab: Sequence[str], settings: TokenizerSettings, tokens: Sequence[str], where: str
) -> ChangedVocab:
    """Makes tokens stay whole in texts; those that the vocabulary lacks are appended."""
    user_tokens = [token.content for token in settings.user_tokens]
    _check_new(tokens, user_tokens, where, "a user token")
    try:
        changed = replace(settings, user_tokens=(*settings.user_tokens, *tokens))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    new = [token for token in tokens if token not in {*vocab}]
    return _appended(vocab, settings, new, changed)


def _check_new(tokens: Sequence[str], existing: Collection[str], where: str, kind: str) -> None:
    """Raises an InputError if a token already exists; the message calls it `kind`."""
    existing = {*existing}
    for token in tokens:
        if token in existing:
            raise InputError(f"{where}: {token!r} is already {kind}; expected only new tokens")


def _appended(
    vocab: Sequence[str],
    settings: TokenizerSettings,
    tokens: Sequence[str],
    new_settings: TokenizerSettings,
) -> ChangedVocab:
    sources = [[index] for index in range(len(vocab))] + _subwords(vocab, settings, tokens)
    return ChangedVocab([*vocab, *tokens], sources, new_settings)


def follow_extension(
    vocab: Sequence[str], settings: TokenizerSettings, extended: Sequence[str], where: str
) -> ChangedVocab:
    """Returns `extended`, a vocabulary that `build-vocab --extend_vocab` made from `vocab`.

    `extended` has other tokens in place of [unusedN], or additional tokens at its end; each of them
    is a new token.
    """
    size, problem = len(vocab), None
    if len(extended) < size:
        problem = f"has {len(extended)} tokens, and the model {size}"
    elif (index := first_difference(extended[:size], vocab, may_extend=True)) is not None:
        problem = f"line {index + 1} is {extended[index]!r}, not {vocab[index]!r}"
    if problem:
        raise InputError(
            f"{where}: {problem}; expected the vocabulary of the model with other tokens in place "
            "of [unusedN] and at the end, as from keras-bert build-vocab --extend_vocab"
        )
    new = [index for index, token in enumerate(extended) if index >= size or token != vocab[index]]
    if not new:
        raise InputError(
            f"{where}: is the vocabulary of the model; expected additional tokens, as from "
            "keras-bert build-vocab --extend_vocab"
        )
    sources = [[index] for index in range(len(extended))]
    rows = _subwords(vocab, settings, [extended[index] for index in new])
    for index, subwords in zip(new, rows, strict=True):
        sources[index] = subwords
    return ChangedVocab(list(extended), sources, settings)


def keep_tokens(
    vocab: Sequence[str], settings: TokenizerSettings, tokens: Collection[str]
) -> ChangedVocab:
    """Removes all tokens that are neither in `tokens` nor special nor user tokens."""
    tokens = {*tokens, *SPECIAL_TOKENS, *(token.content for token in settings.user_tokens)}
    ids = [index for index, token in enumerate(vocab) if token in tokens]
    return ChangedVocab([vocab[index] for index in ids], [[index] for index in ids], settings)


def keep_tokens_of(
    vocab: Sequence[str],
    settings: TokenizerSettings,
    batches: Iterable[Sequence[str]],
    where: str,
) -> ChangedVocab:
    """Removes all tokens that are not special and do not occur in texts, given in batches.

    The texts have the same tokens with the new vocabulary.
    """
    used = used_token_ids(BertTokenizer(vocab, **settings.to_dict()), batches)
    if not used:
        raise InputError(f"{where}: contains no words; expected text")
    return keep_tokens(vocab, settings, [vocab[index] for index in used])


def change_rows(weights: Mapping[str, np.ndarray], vocab: ChangedVocab) -> dict[str, np.ndarray]:
    """Returns the weights of a model, {variable path: array}, for a changed vocabulary."""
    first = np.array([ids[0] for ids in vocab.sources])
    means = [index for index, ids in enumerate(vocab.sources) if len(ids) > 1]
    changed = dict(weights)
    for path in _ROWS:
        if path in weights:
            rows = weights[path][first]
            for index in means:
                rows[index] = weights[path][vocab.sources[index]].mean(0, np.float64)
            changed[path] = rows
    return changed


def _subwords(
    vocab: Sequence[str], settings: TokenizerSettings, tokens: Sequence[str]
) -> list[list[int]]:
    """Returns the ids of the subwords of each token in the vocabulary that lacks the token."""
    unknown = [vocab.index("[UNK]")]
    starts = [token for token in tokens if not token.startswith("##")]
    rows = BertTokenizer(vocab, **settings.to_dict()).tokenize(starts).to_list()
    of_start = dict(zip(starts, rows, strict=True))
    ids = {token: index for index, token in enumerate(vocab)}

    def inner(token: str) -> list[int]:
        row, is_complete = _match(token[2:], ids, "##")
        return row if is_complete else []

    return [of_start.get(token) or inner(token) or unknown for token in tokens]


def _match(text: str, ids: Mapping[str, int], prefix: str = "") -> tuple[list[int], bool]:
    """Returns the ids of the greedy longest matches in a word, and whether they are complete.

    They end before the first part without a match. `prefix` is "##" for the inside of a word.
    """
    row, start = [], 0
    while start < len(text):
        ends = range(len(text), start, -1)
        end = next((end for end in ends if prefix + text[start:end] in ids), None)
        if end is None:
            return row, False
        row.append(ids[prefix + text[start:end]])
        start, prefix = end, "##"
    return row, True


_WORDS_PER_BATCH = 1 << 15


def used_token_ids(tokenizer: BertTokenizer, batches: Iterable[Sequence[str]]) -> set[int]:
    """Returns the ids of the tokens without which some of the texts would have other ids.

    These are the tokens of the texts. For a word that is [UNK], they also include the tokens that
    were matched before the part without a match: if they were missing, shorter tokens could match
    the whole word.
    """
    words: set[bytes] = set()
    for batch in batches:
        words.update(tokenizer.split_words(["\n".join(batch)]).flat_values.numpy().tolist())
    used: set[int] = set()
    vocab_ids = {token: index for index, token in enumerate(tokenizer.vocab)}
    ordered = sorted(words)
    for start in range(0, len(ordered), _WORDS_PER_BATCH):
        batch = ordered[start : start + _WORDS_PER_BATCH]
        ids = tokenizer.tokenize_words(batch)
        used.update(np.unique(ids.values).tolist())
        first = ids.values.numpy()[ids.row_splits.numpy()[:-1]]
        for word in np.array(batch, object)[first == tokenizer.unk_token_id]:
            text = word.decode()
            if len(text) <= tokenizer.settings.max_input_chars_per_word:
                used.update(_match(text, vocab_ids)[0])
    return used


def check_are_words(tokens: Sequence[str], tokenizer: BertTokenizer, where: str) -> None:
    """Raises an InputError if the tokenizer can never produce a token, because it splits the text.

    For example, no text gives the token "covid-19", nor "Covid" if the tokenizer lower-cases.
    """
    # "##s" is a token within a word; any letter may precede it.
    texts = [re.sub("^##(?=.)", "a", token) for token in tokens]
    words = tokenizer.split_words(texts).to_list()
    for token, text, parts in zip(tokens, texts, words, strict=True):
        if parts != [text.encode()]:
            split = " ".join(word.decode() for word in parts)
            raise InputError(
                f"{where}: {token!r} would never be used, because the tokenizer makes {split!r} of "
                f"{text!r}; expected words as the tokenizer splits them"
            )
