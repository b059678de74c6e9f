r"""Learns or extends a WordPiece vocabulary.

    keras-bert build-vocab --input_file='corpus/*.txt' --vocab_file=vocab.txt

    keras-bert build-vocab --input_file='corpus/*.txt' --vocab_file=extended.txt \
        --extend_vocab=bert/vocab.txt

The corpus is split into words by this library's own tokenizer, so the tokenizer can produce every
learned token. With --extend_vocab, no vocabulary is learned: words that the given vocabulary splits
into subwords replace its [unusedN] tokens. With --num_new_words, further words are appended.
"""

import dataclasses
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import ClassVar

import numpy as np
from absl import logging
from absl.flags import FlagValues

from data_tools.corpus import Reading, find_input_files, read_documents
from data_tools.jobs import Progress
from data_tools.lines import OddInput
from data_tools.settings import CorpusOptions, settings_of
from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.options import check, from_values, option, same_as
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.startup import start_tensorflow
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import (
    MAX_CHARS_PER_WORD,
    MAX_TOKEN_BYTES,
    SPECIAL_TOKENS,
    load_vocab,
    unused_ids,
)

# A vocabulary has the order of Google's: [PAD], [UNK], [CLS], [SEP], [MASK], the characters by
# frequency, then the other tokens in the order in which they were learned, then the user's own
# tokens. The tokenizer, which matches the longest token first, can produce each of them.

# --- words ---

_CHARACTERS_PER_BATCH = 1 << 20


def count_words(
    input_files: Sequence[str], reading: Reading, settings: TokenizerSettings, odd: OddInput
) -> Counter[str]:
    """Returns the number of occurrences of each word, as split by the tokenizer.

    Only one batch of text and the distinct words are in memory at a time.

    User tokens and words too long for the tokenizer are not counted. Adds the counts of empty,
    malformed or too long input to `odd`.
    """
    start_tensorflow()
    from keras_bert.text.tokenizer import MARKERS, BertTokenizer

    # Words do not depend on the vocabulary; this is the smallest valid one.
    user_tokens = [token.content for token in settings.user_tokens]
    tokenizer = BertTokenizer([*SPECIAL_TOKENS, *user_tokens], **settings.to_dict())
    counts: Counter[bytes] = Counter()
    with Progress("counting words", None, "sentences") as progress:
        for batch in text_batches(input_files, reading, odd):
            # Joins the texts, because the overhead per text exceeds the cost of its words.
            words = tokenizer.split_words(["\n".join(batch)]).flat_values.numpy()
            counts.update(words.tolist())
            progress.add(len(batch))
    if not counts:
        raise InputError(
            f"--input_file: no words in {input_files[0]} and the files after it; expected text"
        )
    decoded = ((word.decode(), times) for word, times in counts.items())
    return Counter(
        {
            word: times
            for word, times in decoded
            if len(word) <= MAX_CHARS_PER_WORD and not (user_tokens and word.startswith(MARKERS))
        }
    )


def text_batches(
    input_files: Sequence[str], reading: Reading, odd: OddInput
) -> Iterator[list[str]]:
    """Yields the sentences of files in batches; the arguments are those of `count_words`."""
    batch: list[str] = []
    size = 0
    for path in input_files:
        for sentence in chain.from_iterable(read_documents(path, reading, odd)):
            batch.append(sentence)
            size += len(sentence)
            if size >= _CHARACTERS_PER_BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


# --- learning ---

# The tokenizer accepts tokens of up to 256 bytes, and a character has up to four.
_MAX_TOKEN_LENGTH = 60
_WORDS_PER_LINE = 1000


def learn_vocab(
    words: Counter[str],
    vocab_size: int,
    min_frequency: int = 2,
    user_tokens: Sequence[str] = (),
) -> list[str]:
    """Learns a WordPiece vocabulary from word counts; returns the tokens in id order.

    It uses the byte-pair trainer of the `tokenizers` package. The same counts give the same
    vocabulary in every process. A small corpus may give fewer than `vocab_size` tokens.
    """
    num_special = len(SPECIAL_TOKENS) + len(user_tokens)
    check_vocab_size(vocab_size, num_special)
    limit = alphabet_limit(vocab_size, num_special)
    alphabet = alphabet_tokens(words, limit, min_frequency)
    if not alphabet:
        raise InputError(
            f"--vocab_size={vocab_size}: no character of the corpus becomes a token: each occurs "
            f"fewer than --min_frequency={min_frequency} times, or does not fit in addition to "
            f"{num_special} special tokens; expected a larger size, a lower --min_frequency or "
            "more text"
        )
    learned = _learn_tokens(words, alphabet, vocab_size - num_special, min_frequency)
    # A user token that is also learned needs one place only.
    appended = [token for token in user_tokens if token not in {*learned}]
    return [*SPECIAL_TOKENS, *learned, *appended]


def check_vocab_size(vocab_size: int, num_special: int) -> None:
    """Raises an InputError if a vocabulary size leaves no room for a single-character token."""
    if alphabet_limit(vocab_size, num_special) < 1:
        raise InputError(
            f"--vocab_size={vocab_size}: no room for tokens in addition to {num_special} special "
            f"tokens; expected at least {num_special + 2}"
        )


def alphabet_limit(vocab_size: int, num_special: int) -> int:
    """Returns the maximum number of single-character tokens: half of all learned tokens.

    Without this limit, the thousands of characters of Chinese text could fill the vocabulary.
    """
    return (vocab_size - num_special) // 2


def alphabet_tokens(words: Counter[str], max_tokens: int, min_frequency: int) -> list[str]:
    """Chooses the characters that become tokens, `c` at the start of a word and `##c` inside it.

    Returns at most `max_tokens` tokens, the most frequent character first. Characters that occur
    less than `min_frequency` times become [UNK], unless they are ASCII.
    """
    characters: Counter[str] = Counter()
    inner: set[str] = set()
    for word, times in words.items():
        for character in word:
            characters[character] += times
        inner.update(word[1:])
    tokens: list[str] = []
    for character, times in sorted(characters.items(), key=lambda item: (-item[1], item[0])):
        forms = [character] + ["##" + character] * (character in inner)
        is_frequent = times >= min_frequency or character.isascii()
        if is_frequent and len(tokens) + len(forms) <= max_tokens:
            tokens += forms
    return tokens


def _learn_tokens(
    words: Counter[str], alphabet: list[str], max_tokens: int, min_frequency: int
) -> list[str]:
    """Returns the alphabet and the learned tokens, at most `max_tokens` in total."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    # The trainer assigns ids in hash-table order and uses them to choose between pairs of equal
    # frequency, so two runs could differ. Passing the characters as special tokens fixes their ids.
    # A word with any other character is [UNK] as a whole, so such words are not used.
    characters = {token.removeprefix("##") for token in alphabet if len(token) in (1, 3)}
    trainer = trainers.BpeTrainer(
        vocab_size=max_tokens,
        min_frequency=min_frequency,
        special_tokens=alphabet,
        continuing_subword_prefix="##",
        max_token_length=_MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(
        _lines({word: times for word, times in words.items() if characters.issuperset(word)}),
        trainer,
    )
    numbers = tokenizer.get_vocab()
    return sorted(numbers, key=numbers.__getitem__)


def _lines(words: dict[str, int]) -> Iterator[str]:
    """Yields lines of text in which each word of {word: count} is repeated `count` times.

    The trainer does not accept counts.
    """
    line: list[str] = []
    for word in sorted(words):
        times = words[word]
        while times:
            taken = min(times, _WORDS_PER_LINE - len(line))
            line += [word] * taken
            times -= taken
            if len(line) == _WORDS_PER_LINE:
                yield " ".join(line)
                line = []
    yield " ".join(line)


# --- extending ---

_WORDS_PER_BATCH = 1 << 16


def load_extensible(vocab_file: str, do_lower_case: bool, num_new_words: int = 0) -> list[str]:
    """Reads a vocabulary for `num_new_words` additional tokens (0: as many as [unusedN])."""
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

    This adapts a vocabulary to the terms of a domain. If a model is trained further with the
    extended vocabulary, all other tokens keep their rows of the token embeddings. A word in place
    of an unused token uses a row that no token used before. For words at the end, the model must
    get additional rows (`keras_bert.checkpoints.convert`).

    User tokens that the vocabulary lacks are added before the words.

    Returns:
        The extended vocabulary, with all other ids unchanged, and the new words, most frequent
        first.
    """
    user_tokens = [token.content for token in settings.user_tokens if token.content not in {*vocab}]
    vocab = _with_tokens(vocab, user_tokens)
    settings = dataclasses.replace(settings, user_tokens=())
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


# --- program ---


@dataclasses.dataclass(frozen=True)
class VocabSettings:
    """Settings for learning a vocabulary, or for extending one.

    `user_tokens` stay whole and are added to the vocabulary, such as [URL].
    """

    GROUP: ClassVar[str] = "data"
    vocab_size: int = option(30000, "Number of tokens, including special tokens.")
    do_lower_case: bool = same_as(TokenizerSettings, "do_lower_case")
    min_frequency: int = option(
        2,
        "Minimum number of occurrences of a token pair to be merged, or of a new word to be added.",
        min=1,
    )
    strip_accents: bool | None = same_as(TokenizerSettings, "strip_accents")
    tokenize_chinese_chars: bool = same_as(TokenizerSettings, "tokenize_chinese_chars")
    user_tokens: Sequence[str] = ()
    extend_vocab: str | None = option(
        None,
        "Existing vocabulary whose [unusedN] tokens are replaced by new words; then no vocabulary "
        "is learned.",
    )
    num_new_words: int = option(
        0,
        "Maximum number of new words; more than the number of [unusedN] tokens are appended, and "
        "keras-bert convert --vocab_file then adds their rows to a model. 0 uses every [unusedN] "
        "token.",
        min=0,
        needs="extend_vocab",
    )


def build_vocab(
    input_file: str,
    vocab_file: str,
    settings: VocabSettings,
    reading: Reading = Reading(),  # noqa: B008 (frozen)
) -> list[str]:
    """Learns a vocabulary from a corpus, or adds words of the corpus to an existing vocabulary.

    Writes the vocabulary to a file and returns its tokens in id order. `input_file` is a
    comma-separated list of files, globs and directories. An existing `vocab_file` with other
    content than the result is never overwritten.
    """
    tokenizer, vocab_size = from_values(TokenizerSettings, vars(settings)), settings.vocab_size
    check(settings, as_flags=True)
    user_tokens = [token.content for token in tokenizer.user_tokens]
    num_added = settings.num_new_words + len(user_tokens)
    existing: list[str] = []
    if settings.extend_vocab is not None:
        existing = load_extensible(settings.extend_vocab, tokenizer.do_lower_case, num_added)
    else:
        check_vocab_size(vocab_size, len(SPECIAL_TOKENS) + len(user_tokens))
    input_files = find_input_files(input_file, reading.input_format)
    _check_output(vocab_file)
    odd = OddInput()
    words = count_words(input_files, reading, tokenizer, odd)
    if existing:
        vocab, new_words = extend_vocab(
            existing, words, tokenizer, settings.min_frequency, settings.num_new_words
        )
        _write(vocab_file, vocab)
        odd.log()
        logging.info(
            "%s: the tokens of %s and %d new words%s",
            vocab_file,
            settings.extend_vocab,
            len(new_words),
            f", from {new_words[0]!r} (most frequent) to {new_words[-1]!r}" if new_words else "",
        )
        return vocab
    vocab = learn_vocab(words, vocab_size, settings.min_frequency, user_tokens)
    _write(vocab_file, vocab)
    odd.log()
    if len(vocab) < vocab_size:
        logging.warning(
            "the corpus gives only %d tokens, fewer than --vocab_size=%d; at most half of the "
            "learned tokens are single characters",
            len(vocab),
            vocab_size,
        )
    logging.info("%s: %d tokens from %d words", vocab_file, len(vocab), words.total())
    return vocab


def _check_output(vocab_file: str) -> None:
    """Rejects, before the corpus is read, a file that cannot be written or is no vocabulary."""
    if os.path.exists(vocab_file):  # It is not written, but compared with the result.
        load_vocab(vocab_file)
        return
    folder = os.path.dirname(os.path.abspath(vocab_file))
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"--vocab_file={vocab_file}: cannot be written ({error.strerror or error})"
        ) from None


def _write(vocab_file: str, vocab: Iterable[str]) -> None:
    content = "".join(token + "\n" for token in vocab).encode()
    if not os.path.exists(vocab_file):
        files.write_bytes(vocab_file, content)
        return
    with open(vocab_file, "rb") as file:
        if file.read() != content:
            raise InputError(
                f"--vocab_file={vocab_file}: holds another vocabulary, which datasets and models "
                "may use; expected a new file name"
            )
    logging.info("%s already contains this vocabulary; the file is unchanged", vocab_file)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Learns or extends a vocabulary as the flags request."""
    reject_arguments(arguments)
    if flags.extend_vocab is not None and flags["vocab_size"].present:
        raise InputError(
            "--vocab_size: has no effect with --extend_vocab; expected only one of these flags"
        )
    settings, reading = (settings_of(kind, flags) for kind in (VocabSettings, Reading))
    build_vocab(flags.input_file, flags.vocab_file, settings, reading)


PROGRAM = Program(
    "build-vocab",
    __doc__,
    (CorpusOptions, Reading, VocabSettings),
    main,
)
