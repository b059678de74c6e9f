"""Converts a checkpoint to a Hugging Face directory, and can change its vocabulary or size.

    keras-bert convert SRC DST
    keras-bert convert SRC DST --add_tokens=words.txt
    keras-bert convert SRC DST --keep_corpus='corpus/*.txt'
    keras-bert convert SRC DST --keep_layers=0,2,4
    keras-bert convert SRC DST --max_position_embeddings=1024

SRC is a model directory, run folder, TF1 checkpoint, KerasHub preset, or hf://NAME of the Hugging
Face Hub; DST is a Hugging Face directory, written atomically. The weights stay the same, except for
the rows of added and removed tokens and of new positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from absl.flags import FlagValues

from data_tools.build_vocab import text_batches
from data_tools.corpus import Reading, find_input_files
from data_tools.lines import OddInput
from keras_bert.checkpoints.hub import local_model
from keras_bert.errors import InputError
from keras_bert.options import MAX_SEQ_LENGTH, advanced, from_values, option, same_as
from keras_bert.programs.options import integers, values_of
from keras_bert.programs.program import Program
from keras_bert.startup import start_tensorflow
from keras_bert.text.settings import TokenizerSettings
from keras_bert.text.vocabulary import load_vocab, read_tokens

if TYPE_CHECKING:
    from keras_bert.checkpoints.convert import VocabChange

_TOKENIZER = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_CHANGES = ("add_tokens", "user_tokens", "vocab_file", "keep_corpus")


@dataclass(frozen=True)
class ConvertOptions:
    """The options of the program."""

    GROUP: ClassVar[str] = "model"
    heads: bool = option(True, "Whether to convert the heads too, or only the encoder.")
    do_lower_case: bool | None = option(
        None, "Whether the model is uncased. Default: as stored in SRC."
    )
    strip_accents: bool | None = advanced(
        None,
        "Whether the tokenizer strips accents. Default: as stored in SRC, otherwise the value of "
        "--do_lower_case.",
    )
    tokenize_chinese_chars: bool | None = advanced(
        None,
        "Whether each CJK ideograph is a word of its own. Default: as stored in SRC, otherwise "
        "true.",
    )
    keep_layers: Sequence[str] = option(
        (),
        "Comma-separated indices of the layers to keep, from 0 (the lowest), as the start of a "
        "smaller model. Default: all layers.",
    )
    max_position_embeddings: int = option(
        0,
        "Number of positions of the result, more than SRC has, for longer texts; the table is "
        "interpolated, and needs training. 0: as in SRC.",
        min=0,
        max=MAX_SEQ_LENGTH,
    )
    add_tokens: str | None = option(
        None,
        "File with new tokens, one per line, that are appended to the vocabulary. Their rows start "
        "as the mean of the rows of their subwords.",
    )
    user_tokens: str | None = option(
        None,
        "File with your own tokens, one per line, that stay whole in texts, such as [URL]; those "
        "that the vocabulary lacks are appended, and start as with --add_tokens.",
    )
    vocab_file: str | None = option(
        None,
        "Vocabulary that build-vocab --extend_vocab made from the vocabulary of SRC; its new "
        "tokens start as with --add_tokens.",
    )
    keep_corpus: str | None = option(
        None,
        "Comma-separated list of text files, globs and folders: the vocabulary keeps the tokens "
        "that occur in them and the special tokens; all others are removed.",
        group="data",
    )
    input_format: str = same_as(Reading, "input_format", needs="keep_corpus", group="data")
    text_field: str = same_as(Reading, "text_field", needs="keep_corpus", group="data")
    language: str = same_as(Reading, "language", needs="keep_corpus", group="data")
    max_bad_line_share: float = same_as(
        Reading, "max_bad_line_share", needs="keep_corpus", group="advanced"
    )


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Converts the checkpoint and prints which weights were loaded."""
    if len(arguments) != 2:
        raise InputError(
            f"expected two arguments, SRC and DST, got {' '.join(arguments)!r}; the shortest "
            f"command is: {PROGRAM.example}"
        )
    layers = integers(flags, "keep_layers") or []
    change = vocab_change(flags)
    start_tensorflow()  # Imported after the checks, so that invalid arguments fail fast.
    from keras_bert.checkpoints.convert import convert

    source, target = arguments
    report = convert(
        local_model(source),
        Path(target),
        heads=flags.heads,
        tokenizer={name: flags[name].value for name in _TOKENIZER},
        change_vocab=change,
        layers=layers,
        positions=flags.max_position_embeddings,
    )
    print(report)
    print(f"{target}: written")


def vocab_change(flags: FlagValues) -> "VocabChange | None":
    """Returns the change of the vocabulary that the flags request; None without one.

    The files of tokens are read before TensorFlow starts, so that bad ones fail fast.
    """
    names = [name for name in _CHANGES if flags[name].value is not None]
    if len(names) > 1:
        raise InputError(
            f"--{names[0]} and --{names[1]}: expected only one of "
            f"{', '.join('--' + name for name in _CHANGES)}; run convert once for each change"
        )
    if not names:
        return None
    name, value = names[0], flags[names[0]].value
    if name == "keep_corpus":
        reading, odd = from_values(Reading, values_of(flags)), OddInput()
        argument = text_batches(find_input_files(value, reading.input_format, name), reading, odd)
    else:
        argument = load_vocab(value) if name == "vocab_file" else read_tokens(value, name)
    start_tensorflow()
    from keras_bert.checkpoints import convert as changes

    change = {
        "add_tokens": changes.add_tokens,
        "user_tokens": changes.add_user_tokens,
        "vocab_file": changes.follow_extension,
        "keep_corpus": changes.keep_tokens_of,
    }[name]

    def apply(vocab: Sequence[str], settings: TokenizerSettings) -> object:
        changed = change(vocab, settings, argument, f"--{name}={value}")
        if name == "keep_corpus":
            odd.log()
        return changed

    return apply


PROGRAM = Program("convert", __doc__, (ConvertOptions,), main)
