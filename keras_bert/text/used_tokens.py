"""Finds the tokens that occur in texts, and those that cannot occur in any text."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.text.tokenizer import BertTokenizer

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
    for chunk in _chunks(sorted(words)):
        ids, is_unknown = _tokenize(tokenizer, chunk)
        used.update(np.unique(ids.values.numpy()).tolist())
        for word in np.array(chunk, object)[is_unknown]:
            used.update(_matched_start(tokenizer, word.decode()))
    return used


def _matched_start(tokenizer: BertTokenizer, word: str) -> list[int]:
    """Returns the ids that WordPiece matches in a word before it finds no match."""
    if not 1 < len(word) <= tokenizer.settings.max_input_chars_per_word:
        return []
    # The longest start of the word with a match ends where the word has no match.
    starts = [word[:length].encode() for length in range(len(word) - 1, 0, -1)]
    ids, is_unknown = _tokenize(tokenizer, starts)
    matched = np.flatnonzero(~is_unknown)
    return ids[int(matched[0])].numpy().tolist() if len(matched) else []


def _tokenize(tokenizer: BertTokenizer, words: list[bytes]) -> tuple[tf.RaggedTensor, np.ndarray]:
    """Returns the ids of words, ragged [W, (tokens)], and whether each word is [UNK]."""
    ids = tokenizer.tokenize_words(words)
    first = ids.values.numpy()[ids.row_splits.numpy()[:-1]]
    return ids, first == tokenizer.unk_token_id


def _chunks(words: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(words), _WORDS_PER_BATCH):
        yield words[start : start + _WORDS_PER_BATCH]


def check_are_words(tokens: Sequence[str], tokenizer: BertTokenizer, where: str) -> None:
    """Raises an InputError if the tokenizer can never produce a token, because it splits the text.

    For example, no text gives the token "covid-19", nor "Covid" if the tokenizer lower-cases.
    """
    # "##s" is a token within a word; any letter may precede it.
    texts = ["a" + token[2:] if _continues(token) else token for token in tokens]
    words = tokenizer.split_words(texts).to_list()
    for token, text, found in zip(tokens, texts, words, strict=True):
        if found != [text.encode()]:
            split = " ".join(word.decode() for word in found)
            raise InputError(
                f"{where}: {token!r} would never be used, because the tokenizer makes {split!r} of "
                f"{text!r}; expected words as the tokenizer splits them"
            )


def _continues(token: str) -> bool:
    return token.startswith("##") and len(token) > 2
