"""Converts a checkpoint to a Hugging Face directory, and can change its vocabulary or size.

    keras-bert convert SRC DST
    keras-bert convert SRC DST --add_tokens=words.txt
    keras-bert convert SRC DST --keep_corpus='corpus/*.txt'
    keras-bert convert SRC DST --keep_layers=0,2,4
    keras-bert convert SRC DST --max_position_embeddings=1024

SRC is any checkpoint that `--init_checkpoint` accepts; DST is a Hugging Face directory, written
atomically. The weights stay the same, except for the rows of added and removed tokens and of new
positions.
"""

from collections.abc import Sequence
from pathlib import Path

from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.programs import vocab_flags
from keras_bert.programs.flags import MAX_SEQ_LENGTH, Definitions
from keras_bert.programs.program import Program
from keras_bert.startup import start_tensorflow
from keras_bert.text.settings import TokenizerSettings


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.boolean("heads", True, "Whether to convert the heads too, or only the encoder.")
    define.boolean(
        "do_lower_case", None, "Whether the model is uncased. Default: as stored in SRC."
    )
    define.boolean(
        "strip_accents",
        None,
        "Whether the tokenizer strips accents. Default: as stored in SRC, otherwise the value of "
        "--do_lower_case.",
    )
    define.boolean(
        "tokenize_chinese_chars",
        None,
        "Whether each CJK ideograph is a word of its own. Default: as stored in SRC, otherwise "
        "true.",
    )
    define.strings(
        "keep_layers",
        [],
        "Comma-separated indices of the layers to keep, from 0 (the lowest), as the start of a "
        "smaller model. Default: all layers.",
    )
    define.integer(
        "max_position_embeddings",
        0,
        "Number of positions of the result, more than SRC has, for longer texts; the new table "
        "needs training. 0: as in SRC.",
        0,
        MAX_SEQ_LENGTH,
    )
    define.enum(
        "positions_by",
        "interpolate",
        ["interpolate", "tile"],
        "How --max_position_embeddings extends the table: stretched by linear interpolation, or "
        "repeated, which keeps the first positions.",
    )
    vocab_flags.define_flags(define)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Converts the checkpoint and prints which weights were loaded."""
    if len(arguments) != 2:
        raise InputError(
            f"expected two arguments, SRC and DST, got {' '.join(arguments)!r}; see --help"
        )
    layers = _layers(flags.keep_layers) if flags["keep_layers"].present else []
    if flags["positions_by"].present and not flags.max_position_embeddings:
        raise InputError(
            f"--positions_by={flags.positions_by}: has no effect without --max_position_embeddings"
        )
    change = vocab_flags.vocab_change(flags)
    start_tensorflow()  # Imported after the checks, so that invalid arguments fail fast.
    from keras_bert.checkpoints.convert import convert

    source, target = arguments
    report = convert(
        Path(source),
        Path(target),
        heads=flags.heads,
        tokenizer={
            name: flags[name].value for name in TokenizerSettings().to_dict() if name in flags
        },
        change_vocab=change,
        layers=layers,
        positions=flags.max_position_embeddings,
        positions_by=flags.positions_by,
    )
    print(report)
    print(f"{target}: written")


def _layers(values: Sequence[str]) -> list[int]:
    try:
        return [int(value) for value in values or [""]]
    except ValueError:
        raise InputError(
            f"--keep_layers={','.join(values)}: expected integers, separated by commas"
        ) from None


PROGRAM = Program("convert", __doc__, define_flags, main)
