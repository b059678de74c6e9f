r"""Writes the hidden states of BERT's layers for each line of a text file.

    keras-bert extract-features --input_file=text.txt --output_file=features.jsonl \
        --init_checkpoint=bert

    keras-bert extract-features --input_file=text.txt --output_file=vectors.npy \
        --init_checkpoint=bert --layers=-1 --pooling=mean

A line is a text, or a pair "a ||| b". The suffix of the output file selects its format: .jsonl,
or for NumPy .npy (pooled features) or .npz (features of tokens).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from absl import logging
from absl.flags import FlagValues

from keras_bert.options import ANY_MODEL, MAX_BATCH_SIZE, MAX_SEQ_LENGTH, advanced, option, same_as
from keras_bert.programs.options import integers
from keras_bert.programs.program import Program, reject_arguments, require_tensorflow
from keras_bert.startup import start_tensorflow
from keras_bert.tasks.settings import FineTuningSettings
from keras_bert.training.settings import TrainingSettings

_DEFAULT_LAYERS = 4


@dataclass(frozen=True)
class FeatureOptions:
    """The options of the program."""

    GROUP: ClassVar[str] = "model"
    input_file: str = option(
        "", "Text file with one text per line; - for standard input.", required=True
    )
    output_file: str = option(
        "", "File to write; the suffix .jsonl, .npy or .npz selects the format.", required=True
    )
    init_checkpoint: str = option("", f"Model: {ANY_MODEL}.", required=True)
    vocab_file: str = same_as(FineTuningSettings, "vocab_file", group="advanced")
    do_lower_case: bool | None = same_as(FineTuningSettings, "do_lower_case", group="advanced")
    layers: Sequence[str] | None = option(
        None,
        "Comma-separated layer indices; -1 is the last layer, 0 the first. Default: the last four "
        "layers, or all if the model has fewer.",
    )
    pooling: str = option(
        "none",
        "none: one vector per token; otherwise one vector per line: the vector of [CLS], or the "
        "mean or maximum over all tokens.",
        choices=("none", "cls", "mean", "max"),
    )
    max_seq_length: int = option(
        128,
        "Maximum number of tokens in a line; longer lines are truncated.",
        min=3,
        max=MAX_SEQ_LENGTH,
    )
    batch_size: int = advanced(32, "Number of lines in a batch.", min=1, max=MAX_BATCH_SIZE)
    mixed_precision: str = advanced(
        "float32",
        "Data type of the computation; bfloat16 is less exact.",
        choices=("float32", "bfloat16"),
    )
    jit_compile: bool = same_as(TrainingSettings, "jit_compile")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Computes the features and writes them."""
    reject_arguments(arguments)
    layers = integers(flags, "layers")
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    require_tensorflow()
    from tqdm import tqdm

    from keras_bert.files import read_lines
    from keras_bert.models.encoder import BertEncoder
    from keras_bert.tasks.features import (
        check_layers,
        check_not_input,
        check_output_file,
        extract_features,
        write_features,
    )
    from keras_bert.tasks.fine_tuning import open_pretrained
    from keras_bert.training.strategy import dtype_policy

    start = open_pretrained(
        FineTuningSettings(
            flags.init_checkpoint,
            flags.vocab_file,
            flags.do_lower_case,
            max_seq_length=flags.max_seq_length,
        )
    )
    num_layers = start.config.num_hidden_layers
    if layers is None:
        layers = range(-1, -1 - min(_DEFAULT_LAYERS, num_layers), -1)
        logging.info("Extracting the layers %s", ",".join(map(str, layers)))
    check_layers(layers, num_layers)
    output_file = Path(flags.output_file)
    check_not_input(flags.input_file, output_file)
    check_output_file(output_file, flags.pooling)
    encoder = BertEncoder(start.config, dtype=dtype_policy(flags.mixed_precision))
    logging.info("%s", start.load_into(encoder))
    features = extract_features(
        (line for _, line in read_lines(flags.input_file)),
        encoder,
        start.tokenizer(),
        layers,
        flags.pooling,
        flags.max_seq_length,
        flags.batch_size,
        flags.jit_compile,
    )
    bar = tqdm(features, unit="line", disable=not sys.stderr.isatty(), dynamic_ncols=True)
    hidden_size = start.config.hidden_size
    write_features(output_file, bar, layers, flags.pooling, start.vocab, hidden_size)
    logging.info("Features written to %s", output_file)


PROGRAM = Program("extract-features", __doc__, (FeatureOptions,), main)
