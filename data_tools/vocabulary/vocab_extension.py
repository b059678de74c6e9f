"""Replaces the unused tokens of a vocabulary by new words of a corpus.

This adapts a vocabulary to the terms of a domain. A model that is trained further with the extended
vocabulary keeps all other rows of its token embeddings, and each new word gets a row that was not
used before. New words are the most frequent whole words that the vocabulary splits into several
tokens or maps to [UNK].
"""

import re
from collections import Counter

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.text.vocabulary import load_vocab

_UNUSED = re.compile(r"\[unused\d+\]")
_MAX_PIECE_BYTES = 256  # limit of the tokenizer
_WORDS_A_BATCH = 1 << 16


def load_extensible(vocab_file: str, do_lower_case: bool, num_new_words: int = 0) -> list[str]:
    """Reads a vocabulary with enough [unusedN] tokens, at least one.

    Raises:
        InputError: if the file is unreadable, has too few [unusedN] tokens or another casing.
    """
    vocab = load_vocab(vocab_file)
    num_free = len(free_places(vocab))
    if num_free < max(num_new_words, 1):
        wanted = f"--num_new_words={num_new_words}" if num_new_words else "at least one"
        raise InputError(
            f"--extend_vocab={vocab_file} has {num_free} free places [unusedN], expected {wanted}"
        )
    letters = [piece.removeprefix("##") for piece in vocab]
    letters = [piece for piece in letters if piece.isalpha()]
    capital = next((piece for piece in letters if piece != piece.lower()), None)
    if do_lower_case and capital is not None:
        raise InputError(
            f"--extend_vocab={vocab_file} is cased (it has {capital!r}), expected "
            "--nodo_lower_case or an uncased vocabulary"
        )
    small = next((piece for piece in letters if piece != piece.upper()), None)
    if not do_lower_case and capital is None and small is not None:
        raise InputError(
            f"--extend_vocab={vocab_file} is uncased (it has {small!r} and no capital letter), "
            "expected --do_lower_case or a cased vocabulary"
        )
    return vocab


def free_places(vocab: list[str]) -> list[int]:
    """Returns the ids of the [unusedN] tokens in ascending order."""
    return [number for number, piece in enumerate(vocab) if _UNUSED.fullmatch(piece)]


def extend_vocab(
    vocab: list[str],
    words: Counter[str],
    do_lower_case: bool,
    min_frequency: int = 2,
    num_new_words: int = 0,
) -> tuple[list[str], list[str]]:
    """Replaces [unusedN] tokens of a vocabulary by words of a corpus.

    Args:
        vocab: the tokens in id order.
        words: number of occurrences of each word.
        do_lower_case: casing of the vocabulary and of the words.
        min_frequency: minimum number of occurrences of a new word.
        num_new_words: maximum number of new words; 0 uses every [unusedN] token.

    Returns:
        The extended vocabulary, with the same size and all other ids unchanged, and the new words,
        the most frequent first.
    """
    places = free_places(vocab)
    places = places[: num_new_words or len(places)]
    frequent = [
        word
        for word, times in sorted(words.items(), key=lambda item: (-item[1], item[0]))
        if times >= min_frequency and len(word.encode()) <= _MAX_PIECE_BYTES
    ]
    new_words = _cut_words(vocab, frequent, do_lower_case, len(places))
    extended = list(vocab)
    for place, word in zip(places, new_words, strict=False):
        extended[place] = word
    return extended, new_words


def _cut_words(vocab: list[str], words: list[str], do_lower_case: bool, most: int) -> list[str]:
    """Returns the first `most` words that the vocabulary does not contain as a single token."""
    start_tensorflow()
    import tensorflow as tf

    from keras_bert.text.tokenizer import BertTokenizer

    tokenizer = BertTokenizer(vocab, do_lower_case=do_lower_case)
    cut: list[str] = []
    for start in range(0, len(words), _WORDS_A_BATCH):
        batch = words[start : start + _WORDS_A_BATCH]
        pieces = tokenizer.tokenize(batch)
        is_unknown = tf.reduce_any(pieces == tokenizer.unk_token_id, axis=1).numpy()
        is_cut = is_unknown | (pieces.row_lengths().numpy() > 1)
        # A word that the tokenizer itself changes would never be matched.
        again = tf.strings.reduce_join(tokenizer.split_words(batch), axis=1, separator=" ")
        is_word = (again == tf.constant(batch)).numpy()
        cut += [batch[index] for index in np.flatnonzero(is_cut & is_word)]
        if len(cut) >= most:
            break
    return cut[:most]
