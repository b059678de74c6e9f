"""Converts a checkpoint into another format, bit for bit.

    python -m keras_bert.checkpoints.convert SRC DST --to=tf1

SRC is anything that `--init_checkpoint` takes; DST becomes a directory, whole or not at all.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags

from keras_bert.common.errors import InputError
from keras_bert.programs.program import run, start_tensorflow

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "to", "hugging_face", ["hugging_face", "tf1", "keras_hub"], "The format to write."
)
flags.DEFINE_bool("heads", True, "Take the heads along; without them, the encoder alone.")
flags.DEFINE_bool("do_lower_case", None, "The casing, where SRC does not say it right.")


def main(argv: Sequence[str]) -> None:
    """Reads the command line, converts, and prints what came of it."""
    if len(argv) != 3:
        raise InputError(f"expected SRC and DST, got {' '.join(argv[1:])!r}; see --help")
    start_tensorflow()  # Late: bad flags and --help should not wait for it.
    from keras_bert.checkpoints.conversion import convert

    _, source, target = argv
    print(convert(Path(source), Path(target), FLAGS.to, FLAGS.heads, FLAGS.do_lower_case))
    print(f"{target}: written, --to={FLAGS.to}")


if __name__ == "__main__":
    run(main)
