"""Converts a checkpoint to another format, and adds tokens to its vocabulary or removes some.

    keras-bert convert SRC DST --to=tf1
    keras-bert convert SRC DST --add_tokens=words.txt
    keras-bert convert SRC DST --keep_corpus='corpus/*.txt'

SRC is any checkpoint that `--init_checkpoint` accepts; DST is a directory, written atomically. The
weights stay the same, except for the rows of added and removed tokens.
"""

from collections.abc import Sequence
from pathlib import Path

from absl.flags import FlagValues

from keras_bert.common.errors import InputError
from keras_bert.common.tensorflow_start import start_tensorflow
from keras_bert.programs import vocab_flags
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program
from keras_bert.text.settings import TokenizerSettings


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.enum("to", "hugging_face", ["hugging_face", "tf1", "keras_hub"], "Format to write.")
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
    vocab_flags.define_flags(define)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Converts the checkpoint and prints which weights were loaded."""
    if len(arguments) != 2:
        raise InputError(
            f"expected two arguments, SRC and DST, got {' '.join(arguments)!r}; see --help"
        )
    change = vocab_flags.vocab_change(flags)
    start_tensorflow()  # Imported after the checks, so that invalid arguments fail fast.
    from keras_bert.checkpoints.conversion import convert

    source, target = arguments
    tokenizer = {name: flags[name].value for name in TokenizerSettings().to_dict()}
    print(convert(Path(source), Path(target), flags.to, flags.heads, tokenizer, change))
    print(f"{target}: written in format {flags.to}")


PROGRAM = Program("convert", __doc__, define_flags, main)
