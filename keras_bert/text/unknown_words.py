"""Warns of texts with many words that become [UNK], so that a model sees no difference."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from absl import logging

if TYPE_CHECKING:
    from keras_bert.text.tokenizer import BertTokenizer

_MAX_SHARE = 0.2
_MIN_WORDS = 100  # Fewer words may all be names or emoji.
_SAMPLE_TEXTS, _SAMPLE_CHARACTERS = 1000, 1000


def count_unknown_words(ids: Iterable[np.ndarray], tokenizer: "BertTokenizer") -> tuple[int, int]:
    """Returns the number of words in arrays of token ids, and of those that became [UNK]."""
    words = unknown = 0
    for array in ids:
        words += int(np.count_nonzero(tokenizer.starts_word[array]))
        unknown += int(np.count_nonzero(array == tokenizer.unk_token_id))
    return words, unknown


def is_many(words: int, unknown: int) -> bool:
    """Returns whether so many words became [UNK] that something is probably wrong."""
    return words >= _MIN_WORDS and unknown > _MAX_SHARE * words


def warn_of_unknown_words(
    ids: Sequence[np.ndarray], tokenizer: "BertTokenizer", texts: Iterable[str | bytes]
) -> None:
    """Logs a warning if more than 20% of the words of texts, with these token ids, became [UNK]."""
    if sum(map(len, ids)) < _MIN_WORDS:
        return
    words, unknown = count_unknown_words(ids, tokenizer)
    if is_many(words, unknown):
        log_unknown_words(words, unknown, describe_unknown_words(texts, tokenizer))


def log_unknown_words(words: int, unknown: int, description: str) -> None:
    """Logs the warning for texts with `is_many` words that became [UNK]."""
    logging.warning(
        "%.0f%% of the words (%d of %d) are not in the vocabulary and become [UNK]%s",
        100 * unknown / words,
        unknown,
        words,
        description,
    )


def describe_unknown_words(texts: Iterable[str | bytes], tokenizer: "BertTokenizer") -> str:
    """Returns examples of the words of texts that become [UNK], and the likely cause."""
    sample = [text[:_SAMPLE_CHARACTERS] for text in islice(texts, _SAMPLE_TEXTS)]
    words = tokenizer.split_words(sample).flat_values.numpy().tolist()
    counts = Counter(words)
    unknown = _unknown(list(counts), tokenizer)
    unknown.sort(key=counts.__getitem__, reverse=True)
    lower = [word.decode("utf-8", "replace").lower().encode() for word in unknown]
    still_unknown = {*_unknown(lower, tokenizer)}
    pairs = zip(unknown, lower, strict=True)
    num_lower = sum(counts[word] for word, low in pairs if low not in still_unknown)
    cause = "the vocabulary may be that of another language"
    if 2 * num_lower > sum(map(counts.__getitem__, unknown)):
        cause = (
            "most of them are in the vocabulary in lower case, so it is probably uncased; set "
            "do_lower_case"
        )
    examples = ", ".join(repr(word.decode("utf-8", "replace")) for word in unknown[:3])
    return f", such as {examples}: {cause}" if unknown else ""


def _unknown(words: Sequence[bytes], tokenizer: "BertTokenizer") -> list[bytes]:
    tokens = tokenizer.tokenize_words(words or [b""])
    has_unknown = {*tokens.value_rowids().numpy()[tokens.values == tokenizer.unk_token_id].tolist()}
    return [word for index, word in enumerate(words) if index in has_unknown]
