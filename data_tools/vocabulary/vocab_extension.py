"""Puts a corpus's new words into the unused places of a vocabulary.

For a field's own words: a model trained on with the new vocabulary keeps every other row of its
embeddings, and each new word has a row that was never used. What is new is whole words that the
vocabulary cuts into several pieces or cannot make at all, the most frequent first.
"""

import re
from collections import Counter

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.text.vocabulary import load_vocab

_UNUSED = re.compile(r"\[unused\d+\]")
_MAX_PIECE_BYTES = 256  # the tokenizer takes no longer ones
_WORDS_A_BATCH = 1 << 16


def load_extensible(vocab_file: str, do_lower_case: bool, num_new_words: int = 0) -> list[str]:
    """Reads a vocabulary that words can be put into.

    Args:
        vocab_file: the vocabulary.
        do_lower_case: whether the words to come are lower-cased.
        num_new_words: places needed.

    Returns:
        Its pieces.

    Raises:
        InputError: it cannot be read, has too few free places, or is of the other casing.
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
    """Finds the places of a vocabulary that no text uses.

    Args:
        vocab: the pieces.

    Returns:
        The ids of its [unusedN], rising.
    """
    return [number for number, piece in enumerate(vocab) if _UNUSED.fullmatch(piece)]


def extend_vocab(
    vocab: list[str],
    words: Counter[str],
    do_lower_case: bool,
    min_frequency: int = 2,
    num_new_words: int = 0,
) -> tuple[list[str], list[str]]:
    """Puts a corpus's words into a vocabulary's [unusedN] places.

    Args:
        vocab: the pieces.
        words: how often each word occurs.
        do_lower_case: the vocabulary's casing, by which the words were cut.
        min_frequency: how often a word must occur.
        num_new_words: most words to put in; 0 for as many as there are places.

    Returns:
        The extended vocabulary, of the same size and with all other ids unchanged, and the new
        words, the most frequent first.
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
    """Returns the first words that the vocabulary has not as one piece."""
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
        # A word that the tokenizer would change once more could never be found.
        again = tf.strings.reduce_join(tokenizer.split_words(batch), axis=1, separator=" ")
        is_word = (again == tf.constant(batch)).numpy()
        cut += [batch[index] for index in np.flatnonzero(is_cut & is_word)]
        if len(cut) >= most:
            break
    return cut[:most]
