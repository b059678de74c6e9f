"""Replaces the unused tokens of a vocabulary by new words of a corpus.

This adapts a vocabulary to the terms of a domain. If a model is trained further with the extended
vocabulary, each new word uses a row of the token embeddings that no token used before, and all
other tokens keep their rows.
"""

from collections import Counter

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab, unused_ids

_MAX_TOKEN_BYTES = 256  # limit of the tokenizer
_WORDS_PER_BATCH = 1 << 16


def load_extensible(vocab_file: str, do_lower_case: bool, num_new_words: int = 0) -> list[str]:
    """Reads a vocabulary, and checks that `num_new_words` words can be added (0: at least one).

    Raises an `InputError` if the file is unreadable, has too few [unusedN] tokens, or a casing that
    contradicts `do_lower_case`.
    """
    vocab = load_vocab(vocab_file)
    num_unused = len(unused_ids(vocab))
    if num_unused < max(num_new_words, 1):
        expected = f"--num_new_words={num_new_words}" if num_new_words else "at least one"
        raise InputError(
            f"--extend_vocab={vocab_file}: {num_unused} [unusedN] tokens; expected {expected}"
        )
    letters = [token.removeprefix("##") for token in vocab]
    letters = [token for token in letters if token.isalpha()]
    uppercase = next((token for token in letters if token != token.lower()), None)
    if do_lower_case and uppercase is not None:
        raise InputError(
            f"--extend_vocab={vocab_file}: cased (it contains {uppercase!r}); expected an uncased "
            "vocabulary, or --nodo_lower_case"
        )
    lowercase = next((token for token in letters if token != token.upper()), None)
    if not do_lower_case and uppercase is None and lowercase is not None:
        raise InputError(
            f"--extend_vocab={vocab_file}: uncased (it contains {lowercase!r} and no capital "
            "letter); expected a cased vocabulary, or --do_lower_case"
        )
    return vocab


def extend_vocab(
    vocab: list[str],
    words: Counter[str],
    settings: TokenizerSettings,
    min_frequency: int = 2,
    num_new_words: int = 0,
) -> tuple[list[str], list[str]]:
    """Replaces [unusedN] tokens of a vocabulary by the most frequent words that it lacks.

    `words` maps each word to its number of occurrences, and `settings` are those of the tokenizer;
    the other arguments are those of `build_vocab.VocabExtension`.

    Returns:
        The extended vocabulary, with all other ids unchanged, and the new words, most frequent
        first.
    """
    ids = unused_ids(vocab)
    ids = ids[: num_new_words or len(ids)]
    frequent = [
        word
        for word, times in sorted(words.items(), key=lambda item: (-item[1], item[0]))
        if times >= min_frequency and len(word.encode()) <= _MAX_TOKEN_BYTES
    ]
    new_words = _words_without_token(vocab, frequent, settings, len(ids))
    extended = list(vocab)
    for token_id, word in zip(ids, new_words, strict=False):
        extended[token_id] = word
    return extended, new_words


def _words_without_token(
    vocab: list[str], words: list[str], settings: TokenizerSettings, max_words: int
) -> list[str]:
    """Returns the first `max_words` words that the tokenizer splits or maps to [UNK]."""
    start_tensorflow()
    import tensorflow as tf

    from keras_bert.text.tokenizer import BertTokenizer

    tokenizer = BertTokenizer(vocab, **settings.to_dict())
    found: list[str] = []
    for start in range(0, len(words), _WORDS_PER_BATCH):
        batch = words[start : start + _WORDS_PER_BATCH]
        tokens = tokenizer.tokenize(batch)
        is_unknown = tf.reduce_any(tokens == tokenizer.unk_token_id, axis=1).numpy()
        is_split = is_unknown | (tokens.row_lengths().numpy() > 1)
        # The tokenizer would never produce a word that it changes.
        again = tf.strings.reduce_join(tokenizer.split_words(batch), axis=1, separator=" ")
        is_word = (again == tf.constant(batch)).numpy()
        found += [batch[index] for index in np.flatnonzero(is_split & is_word)]
        if len(found) >= max_words:
            break
    return found[:max_words]
