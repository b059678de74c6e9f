"""Writes what chosen layers of BERT make of each line of a text file, without training.

    python extract_features.py --input_file=text.txt --output_file=features.jsonl \
        --init_checkpoint=bert --layers=-1,-2,-3,-4

    python extract_features.py --input_file=text.txt --output_file=vectors.npy \
        --init_checkpoint=bert --layers=-1 --pooling=mean

A line is a text, or a pair "a ||| b". The output's name says its format: .jsonl, .tfrecord, and of
NumPy .npy for pooled features and .npz for those of pieces.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags, logging

from keras_bert.common.errors import InputError
from keras_bert.programs.program import need_tensorflow, no_arguments, run, start_tensorflow

FLAGS = flags.FLAGS

flags.DEFINE_string("input_file", "", "Text, a line each; - for standard input.")
flags.DEFINE_string("output_file", "", "Features: .jsonl, .npy, .npz or .tfrecord.")
flags.DEFINE_string("init_checkpoint", "", "Model directory, TF1 checkpoint or a run's folder.")
flags.DEFINE_string("vocab_file", "", "Vocabulary; without it, the checkpoint's.")
flags.DEFINE_bool("do_lower_case", None, "Lower-case text; without it, as the checkpoint says.")
flags.DEFINE_list("layers", ["-1", "-2", "-3", "-4"], "Layers by comma; -1 is the last.")
flags.DEFINE_enum(
    "pooling",
    "none",
    ["none", "cls", "mean", "max"],
    "Every piece; or one vector a line: the first piece's, or over all pieces.",
)
flags.DEFINE_integer("max_seq_length", 128, "Pieces of a line at most.", lower_bound=3)
flags.DEFINE_integer("batch_size", 32, "Lines a batch.", lower_bound=1)
flags.DEFINE_enum(
    "mixed_precision", "float32", ["float32", "bfloat16"], "Compute type; bfloat16 is less exact."
)
flags.DEFINE_bool("jit_compile", True, "Compile with XLA.")

HELP = """\
extract_features.py: {missing} not given. It needs lines of text and a model:
  text         any UTF-8 file, a text or a pair "a ||| b" a line
  checkpoint   a Hugging Face directory with model.safetensors, Google's TF1 files, a KerasHub
               preset, or an earlier run's folder
The shortest command:
  python extract_features.py --input_file=FILE --init_checkpoint=DIR --output_file=features.jsonl"""


def main(argv: Sequence[str]) -> None:
    """Reads the flags, computes the features and writes them."""
    no_arguments(argv)
    names = ("input_file", "output_file", "init_checkpoint")
    if missing := [f"--{name}" for name in names if not FLAGS[name].value]:
        print(HELP.format(missing=" and ".join(missing)), file=sys.stderr)
        sys.exit(1)
    layers = _layers()
    start_tensorflow()  # Late: bad flags and --help should not wait for it.
    need_tensorflow()
    from tqdm import tqdm

    from keras_bert.common.text_lines import read_lines
    from keras_bert.models.encoder import BertEncoder
    from keras_bert.tasks.features.extract import FeatureSettings, check_layers, extract_features
    from keras_bert.tasks.features.files import check_not_input, make_writer
    from keras_bert.tasks.fine_tuning.pretrained import StartSettings, open_pretrained
    from keras_bert.training.strategy import dtype_policy

    start = open_pretrained(
        StartSettings(
            FLAGS.init_checkpoint, FLAGS.vocab_file, FLAGS.do_lower_case, FLAGS.max_seq_length
        )
    )
    check_layers(layers, start.config.num_hidden_layers)
    output_file = Path(FLAGS.output_file)
    check_not_input(FLAGS.input_file, output_file)
    hidden_size = start.config.hidden_size
    write = make_writer(output_file, layers, FLAGS.pooling, start.vocab, hidden_size)
    encoder = BertEncoder(start.config, dtype=dtype_policy(FLAGS.mixed_precision))
    logging.info("%s", start.checkpoint.load_into(encoder))
    features = extract_features(
        (line for _, line in read_lines(FLAGS.input_file)),
        encoder,
        start.tokenizer(),
        FeatureSettings(
            layers, FLAGS.pooling, FLAGS.max_seq_length, FLAGS.batch_size, FLAGS.jit_compile
        ),
    )
    bar = tqdm(features, unit="line", disable=not sys.stderr.isatty(), dynamic_ncols=True)
    write(output_file, bar)
    logging.info("%s is written", output_file)


def _layers() -> list[int]:
    try:
        return [int(layer) for layer in FLAGS.layers]
    except ValueError:
        raise InputError(
            f"--layers={','.join(FLAGS.layers)}: expected whole numbers by comma, such as -1,-2"
        ) from None


if __name__ == "__main__":
    run(main)
