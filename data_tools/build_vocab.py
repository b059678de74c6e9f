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
from collections.abc import Iterable, Sequence
from typing import ClassVar

from absl import logging
from absl.flags import FlagValues

from data_tools.corpus import Reading, find_input_files
from data_tools.lines import OddInput
from data_tools.settings import CorpusOptions, settings_of
from data_tools.vocabulary import (
    check_vocab_size,
    count_words,
    extend_vocab,
    learn_vocab,
    load_extensible,
)
from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.options import check, from_values, option, same_as
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import SPECIAL_TOKENS, load_vocab


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

    Raises:
        InputError: if the input is invalid, the vocabulary to extend has no [unusedN] tokens or a
            different casing, or `vocab_file` exists with other content.
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
