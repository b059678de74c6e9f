r"""Learns or extends a WordPiece vocabulary.

    keras-bert build-vocab --input_file='corpus/*.txt' --vocab_file=vocab.txt \
        --vocab_size=8000

The corpus is split into words by this library's own tokenizer, so the tokenizer can produce every
learned token. With --extend_vocab, no vocabulary is learned: words that the given vocabulary splits
into subwords replace its [unusedN] tokens. With --num_new_words, further words are appended.
"""

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence

from absl import logging
from absl.flags import FlagValues

from data_tools.corpus import Reading, find_input_files
from data_tools.lines import OddInput
from data_tools.settings import define_reading_flags, define_tokenizer_flags, settings_of
from data_tools.vocabulary import (
    alphabet_limit,
    alphabet_tokens,
    check_vocab_size,
    count_words,
    extend_vocab,
    learn_vocab,
    load_extensible,
)
from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import SPECIAL_TOKENS, first_difference

_LEARNING_FLAGS = ("vocab_size", "num_unused", "pad_to_multiple_of")
_EXTENSION_FLAGS = ("num_new_words",)


@dataclasses.dataclass(frozen=True)
class VocabSettings:
    """Settings for learning a vocabulary.

    Attributes:
        vocab_size: number of tokens.
        do_lower_case: whether the tokenizer lower-cases text.
        min_frequency: minimum number of occurrences of a token pair that is merged.
        num_unused: number of [unusedN] tokens to reserve.
        pad_to_multiple_of: [unusedN] tokens are added until the number of tokens is a multiple of
            this number.
        strip_accents: whether the tokenizer strips accents; None for the value of do_lower_case.
        tokenize_chinese_chars: whether each CJK ideograph is a word of its own.
        user_tokens: tokens that stay whole and are added to the vocabulary, such as [URL].
    """

    vocab_size: int
    do_lower_case: bool = True
    min_frequency: int = 2
    num_unused: int = 0
    pad_to_multiple_of: int = 1
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    user_tokens: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class VocabExtension:
    """Settings for extending an existing vocabulary.

    Attributes:
        extend_vocab: path of the existing vocabulary.
        do_lower_case: whether the existing vocabulary is lower-cased.
        min_frequency: minimum number of occurrences of a new word.
        num_new_words: maximum number of new words; those that exceed the number of [unusedN] tokens
            are appended. 0 uses every [unusedN] token.
        strip_accents: whether the tokenizer strips accents; None for the value of do_lower_case.
        tokenize_chinese_chars: whether each CJK ideograph is a word of its own.
        user_tokens: tokens that stay whole and are added to the vocabulary, such as [URL].
    """

    extend_vocab: str
    do_lower_case: bool = True
    min_frequency: int = 2
    num_new_words: int = 0
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    user_tokens: Sequence[str] = ()


def build_vocab(
    input_file: str,
    vocab_file: str,
    settings: VocabSettings,
    reading: Reading = Reading(),  # noqa: B008 (frozen)
) -> list[str]:
    """Learns a vocabulary from a corpus, writes it to a file and returns its tokens in id order.

    `input_file` is a comma-separated list of files, globs and directories. An existing `vocab_file`
    with other content than the result is never overwritten.

    Raises:
        InputError: if the input is invalid or `vocab_file` exists with other content.
    """
    vocab_size, num_unused = settings.vocab_size, settings.num_unused
    min_frequency, multiple = settings.min_frequency, settings.pad_to_multiple_of
    _check_at_least("min_frequency", min_frequency, 1)
    _check_at_least("num_unused", num_unused, 0)
    _check_at_least("pad_to_multiple_of", multiple, 1)
    tokenizer = TokenizerSettings.of(settings)
    check_vocab_size(vocab_size, num_unused + len(tokenizer.user_tokens))
    input_files = find_input_files(input_file, reading.input_format)
    _check_writable(vocab_file)
    _check_existing(vocab_file, lambda tokens: len(tokens) < vocab_size + multiple)
    odd = OddInput()
    words = count_words(input_files, reading, tokenizer, odd)
    own = [token.content for token in tokenizer.user_tokens]
    vocab = learn_vocab(words, vocab_size, min_frequency, num_unused, multiple, own)
    _write(vocab_file, vocab)
    odd.log()
    if len(vocab) < vocab_size:
        limit = alphabet_limit(vocab_size, num_unused + len(own))
        alphabet = alphabet_tokens(words, sys.maxsize, min_frequency)
        cause = ""
        if len(alphabet) > limit:
            cause = (
                f": at most half of the learned tokens ({limit}) can be single characters, but the "
                f"corpus has {len(alphabet)}, and words with the others were not used; "
                f"--vocab_size={vocab_size + 2 * (len(alphabet) - limit)} includes all characters"
            )
        logging.warning(
            "the corpus gives only %d tokens, fewer than --vocab_size=%d%s",
            len(vocab),
            vocab_size,
            cause,
        )
    logging.info("%s: %d tokens from %d words", vocab_file, len(vocab), words.total())
    return vocab


def build_extended_vocab(
    input_file: str,
    vocab_file: str,
    extension: VocabExtension,
    reading: Reading = Reading(),  # noqa: B008 (frozen)
) -> list[str]:
    """Adds words of a corpus to a vocabulary and writes the result.

    The words replace [unusedN] tokens; with `num_new_words`, further words are appended. The other
    arguments are as for `build_vocab`. Returns the tokens in id order.

    Raises:
        InputError: if the input is invalid, the existing vocabulary has no [unusedN] tokens or a
            different casing, or `vocab_file` exists with other content.
    """
    tokenizer, num_new_words = TokenizerSettings.of(extension), extension.num_new_words
    _check_at_least("min_frequency", extension.min_frequency, 1)
    _check_at_least("num_new_words", num_new_words, 0)
    num_added = num_new_words + len(tokenizer.user_tokens)
    existing = load_extensible(extension.extend_vocab, tokenizer.do_lower_case, num_added)
    input_files = find_input_files(input_file, reading.input_format)
    _check_writable(vocab_file)

    def is_extended(tokens: list[str]) -> bool:
        size = len(existing)
        if not size <= len(tokens) <= size + num_added:
            return False
        return first_difference(tokens[:size], existing, may_extend=True) is None

    _check_existing(vocab_file, is_extended)
    odd = OddInput()
    words = count_words(input_files, reading, tokenizer, odd)
    vocab, new_words = extend_vocab(
        existing, words, tokenizer, extension.min_frequency, num_new_words
    )
    _write(vocab_file, vocab)
    odd.log()
    logging.info(
        "%s: the tokens of %s and %d new words%s",
        vocab_file,
        extension.extend_vocab,
        len(new_words),
        f", from {new_words[0]!r} (most frequent) to {new_words[-1]!r}" if new_words else "",
    )
    return vocab


def _check_at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise InputError(f"--{name}={value}: expected at least {low}")


def _check_writable(vocab_file: str) -> None:
    """Checks that the vocabulary file can be written, before the corpus is read."""
    try:
        if os.path.exists(vocab_file):  # It is not written, but compared with the result.
            with open(vocab_file, "rb"):
                return
        folder = os.path.dirname(os.path.abspath(vocab_file))
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"--vocab_file={vocab_file}: cannot be written ({error.strerror or error})"
        ) from None


def _check_existing(vocab_file: str, may_be_result: Callable[[list[str]], bool]) -> None:
    """Rejects an existing vocabulary file that cannot be the result, before the corpus is read.

    `may_be_result(tokens)` is whether the result can be the vocabulary with these tokens.
    """
    if not os.path.exists(vocab_file):
        return
    with open(vocab_file, "rb") as file:
        content = file.read()
    tokens = content.decode("utf-8", "replace").removesuffix("\n").split("\n")
    if {*SPECIAL_TOKENS} - {*tokens} or not may_be_result(tokens):
        raise _other_content(vocab_file)


def _other_content(vocab_file: str) -> InputError:
    return InputError(
        f"--vocab_file={vocab_file}: holds another vocabulary, which datasets and models "
        "may use; expected a new file name"
    )


def _write(vocab_file: str, vocab: Iterable[str]) -> None:
    content = "".join(token + "\n" for token in vocab).encode()
    if not os.path.exists(vocab_file):
        files.write_bytes(vocab_file, content)
        return
    with open(vocab_file, "rb") as file:
        if file.read() != content:
            raise _other_content(vocab_file)
    logging.info("%s already contains this vocabulary; the file is unchanged", vocab_file)


def define_flags(define: Definitions) -> None:
    """Defines the flags of this program."""
    define_reading_flags(define)
    define.string("input_file", None, "Comma-separated list of text files, globs and folders.")
    define.string("vocab_file", None, "Output file of the vocabulary.")
    define_tokenizer_flags(define)
    define.integer(
        "min_frequency",
        2,
        "Minimum number of occurrences of a token pair to be merged, or of a new word to be added.",
    )
    define.integer("vocab_size", 30000, "Number of tokens, including special tokens.")
    define.integer("num_unused", 0, "Number of [unusedN] tokens to reserve.")
    define.integer(
        "pad_to_multiple_of",
        1,
        "Add [unusedN] tokens until the size is a multiple of this, for example 8.",
    )
    define.string(
        "extend_vocab",
        None,
        "Existing vocabulary whose [unusedN] tokens are replaced by new words; then no vocabulary "
        "is learned.",
    )
    define.integer(
        "num_new_words",
        0,
        "Maximum number of new words; more than the number of [unusedN] tokens are appended, and "
        "`convert --vocab_file` then adds their rows to a model. 0 uses every [unusedN] token.",
    )
    define.require("input_file", "vocab_file")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Learns or extends a vocabulary as the flags request."""
    reject_arguments(arguments)
    extends = flags.extend_vocab is not None
    for name in _LEARNING_FLAGS if extends else _EXTENSION_FLAGS:
        if flags[name].present:
            word, expected = ("with", "only one") if extends else ("without", "both")
            raise InputError(
                f"--{name}: has no effect {word} --extend_vocab; expected {expected} of these flags"
            )
    kind = VocabExtension if extends else VocabSettings
    settings, reading = (settings_of(each, flags) for each in (kind, Reading))
    build = build_extended_vocab if extends else build_vocab
    build(flags.input_file, flags.vocab_file, settings, reading)


PROGRAM = Program("build-vocab", __doc__, define_flags, main)
