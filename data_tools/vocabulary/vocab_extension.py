"""Adds new words of a corpus to a vocabulary: in place of its unused tokens, then at its end.

This adapts a vocabulary to the terms of a domain. If a model is trained further with the extended
vocabulary, all other tokens keep their rows of the token embeddings. A word in place of an unused
token uses a row that no token used before. For words at the end, the model must get additional
rows (`keras_bert.checkpoints.vocab_change`).
"""

from collections import Counter

import numpy as np

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.token_file import MAX_TOKEN_BYTES
from keras_bert.text.vocabulary import load_vocab, unused_ids

_WORDS_PER_BATCH = 1 << 16


def load_extensible(vocab_file: str, do_lower_case: bool, num_new_words: int = 0) -> list[str]:
    """Reads a vocabulary to which `num_new_words` tokens will be added (0: as many as [unusedN]).

    Raises an `InputError` if the file is unreadable, has no [unusedN] token with `num_new_words` 0,
    or has a casing that contradicts `do_lower_case`.
    """
    vocab = load_vocab(vocab_file)
    if not num_new_words and not unused_ids(vocab):
        raise InputError(
            f"--extend_vocab={vocab_file}: 0 [unusedN] tokens; expected at least one, or "
            "--num_new_words for words at the end of the vocabulary"
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
    """Adds the most frequent words that a vocabulary lacks: for [unusedN] tokens, then at its end.

    `words` maps each word to its number of occurrences, and `settings` are those of the tokenizer;
    the other arguments are those of `build_vocab.VocabExtension`. User tokens that the vocabulary
    lacks are added before the words.

    Returns:
        The extended vocabulary, with all other ids unchanged, and the new words, most frequent
        first.
    """
    own = [token.content for token in settings.user_tokens if token.content not in {*vocab}]
    vocab = _with_tokens(vocab, own)
    settings = settings.for_characters()
    ids = unused_ids(vocab)
    frequent = [
        word
        for word, times in sorted(words.items(), key=lambda item: (-item[1], item[0]))
        if times >= min_frequency and len(word.encode()) <= MAX_TOKEN_BYTES
    ]
    new_words = _words_without_token(vocab, frequent, settings, num_new_words or len(ids))
    return _with_tokens(vocab, new_words), new_words


def _with_tokens(vocab: list[str], tokens: list[str]) -> list[str]:
    """Adds tokens in place of [unusedN], and further ones at the end."""
    ids = unused_ids(vocab)
    extended = list(vocab)
    for token_id, token in zip(ids, tokens, strict=False):
        extended[token_id] = token
    return extended + tokens[len(ids) :]


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
