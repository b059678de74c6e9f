"""Defines the flags of `convert` that add tokens to the vocabulary or remove tokens from it."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from data_tools.corpus import Reading, find_input_files
from data_tools.lines import OddInput
from data_tools.settings import define_reading_flags
from data_tools.vocabulary import text_batches
from keras_bert.errors import InputError
from keras_bert.programs.flags import Definitions
from keras_bert.startup import start_tensorflow
from keras_bert.text.vocabulary import load_vocab, read_tokens

if TYPE_CHECKING:
    from keras_bert.checkpoints.vocabulary_change import VocabChange

_CHANGES = ("add_tokens", "user_tokens", "vocab_file", "keep_tokens", "keep_corpus")


def define_flags(define: Definitions) -> None:
    """Defines the flags."""
    define.string(
        "add_tokens",
        None,
        "File with new tokens, one per line, that are appended to the vocabulary. Their rows start "
        "as the mean of the rows of their subwords.",
    )
    define.string(
        "user_tokens",
        None,
        "File with your own tokens, one per line, that stay whole in texts, such as [URL]; those "
        "that the vocabulary lacks are appended, and start as with --add_tokens.",
    )
    define.string(
        "vocab_file",
        None,
        "Vocabulary that build_vocab --extend_vocab made from the vocabulary of SRC; its new "
        "tokens start as with --add_tokens.",
    )
    define.string(
        "keep_tokens",
        None,
        "File with the tokens, one per line, that the vocabulary keeps in addition to the special "
        "tokens; all others are removed.",
    )
    define.string(
        "keep_corpus",
        None,
        "Comma-separated list of text files, globs and folders: the vocabulary keeps the tokens "
        "that occur in them and the special tokens; all others are removed.",
    )
    define_reading_flags(define)


def vocab_change(flags: FlagValues) -> "VocabChange | None":
    """Returns the change that the flags request; None without one.

    The files of tokens are read before TensorFlow starts, so that bad ones fail fast.
    """
    chosen = [name for name in _CHANGES if flags[name].value is not None]
    if len(chosen) > 1:
        raise InputError(
            f"--{chosen[0]} and --{chosen[1]}: expected only one of "
            f"{', '.join('--' + name for name in _CHANGES)}; run convert once for each change"
        )
    reading = {field.name: flags[field.name] for field in fields(Reading)}
    unused = [name for name, flag in reading.items() if flag.present]
    if unused and chosen != ["keep_corpus"]:
        raise InputError(
            f"--{unused[0]}: has no effect without --keep_corpus; expected both of these flags"
        )
    if not chosen:
        return None
    name, value = chosen[0], flags[chosen[0]].value
    if name == "keep_corpus":
        how = Reading(**{key: flag.value for key, flag in reading.items()})
        argument = _texts(find_input_files(value, how.input_format, name), how)
    else:
        argument = load_vocab(value) if name == "vocab_file" else read_tokens(value, name)
    start_tensorflow()
    from keras_bert.checkpoints import vocabulary_change

    change = {
        "add_tokens": vocabulary_change.add_tokens,
        "user_tokens": vocabulary_change.add_user_tokens,
        "vocab_file": vocabulary_change.follow_extension,
        "keep_tokens": vocabulary_change.keep_tokens,
        "keep_corpus": vocabulary_change.keep_tokens_of,
    }[name]
    return lambda vocab, settings: change(vocab, settings, argument, f"--{name}={value}")


def _texts(files: Sequence[str], reading: Reading) -> Iterator[list[str]]:
    odd = OddInput()
    yield from text_batches(files, reading, odd)
    odd.log()
