"""Adds tokens to the vocabulary of a model, or removes tokens from it.

    grown      "encephalitis" -> mean of the rows of "en" "##ce" "##pha" "##lit" "##is"
    shrunk     the rows of the tokens that stay

Two variables have a row for each token: the word embeddings, which the output of the masked-LM head
shares, and the bias of that output. The other weights do not change.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import (
    SPECIAL_TOKENS,
    first_difference,
)

ROWS = ("encoder/embeddings/word_embeddings", "masked_lm/output_bias")


class ChangedVocab(NamedTuple):
    """A new vocabulary, and the rows of the old one from which its rows are made.

    Attributes:
        tokens: the V' tokens in the order of their ids.
        sources: for each token, the ids in the old vocabulary whose rows are averaged; an id alone
            is a row that does not change.
        settings: the new settings of the tokenizer.
    """

    tokens: list[str]
    sources: list[list[int]]
    settings: TokenizerSettings


# Makes the new vocabulary from the old one and the settings of the tokenizer.
VocabChange = Callable[[Sequence[str], TokenizerSettings], ChangedVocab]


def add_tokens(
    vocab: Sequence[str], settings: TokenizerSettings, tokens: Sequence[str], where: str
) -> ChangedVocab:
    """Appends tokens at the end of a vocabulary; error messages start with `where`.

    Raises:
        InputError: a token is in the vocabulary, or the tokenizer can never produce it.
    """
    _check_new(tokens, vocab, where, "in the vocabulary")
    check_are_words(tokens, BertTokenizer(vocab, **settings.to_dict()), where)
    return _appended(vocab, settings, tokens, settings)


def add_user_tokens(
    vocab: Sequence[str], settings: TokenizerSettings, tokens: Sequence[str], where: str
) -> ChangedVocab:
    """Makes tokens stay whole in texts; those that the vocabulary lacks are appended.

    Error messages start with `where`.

    Raises:
        InputError: a token is not valid, or is already a user token.
    """
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
    is a new token. Error messages start with `where`.

    Raises:
        InputError: the vocabularies differ in other places, or not at all.
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
    """Removes all tokens that are neither in `tokens` nor special nor user tokens.

    The others keep their order.
    """
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

    The texts have the same tokens with the new vocabulary. Error messages start with `where`.

    Raises:
        InputError: the texts have no tokens.
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
    for path in ROWS:
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


# --- used tokens ---


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
