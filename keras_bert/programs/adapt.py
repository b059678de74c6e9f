r"""Continues the pre-training of a BERT on your own documents.

    keras-bert adapt --input_file=documents --input_format=mixed --init_checkpoint=bert \
        --output_dir=adapted

With --input_format=mixed, the documents are the text, HTML, Markdown, Word, Parquet, Arrow and
JSON-lines files in a folder. By default, they are text files with one sentence per line.
Some of them are held out. Frequent words of the others are added to the vocabulary of the
checkpoint, and the masked-LM training continues on their text. The results compare the masked-LM
loss on the held-out documents before and after the training. The output folder can be the
--init_checkpoint of fine-tuning.

To resume an interrupted adaptation, run the same command again.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from absl import logging
from absl.flags import FlagValues

from data_tools.corpus import Reading, find_input_files
from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.options import (
    MAX_BATCH_SIZE,
    MAX_REPEATS,
    MAX_SEED,
    MAX_SEQ_LENGTH,
    from_values,
    option,
    same_as,
)
from keras_bert.programs import runs
from keras_bert.programs.compilation_cache import use_compilation_cache
from keras_bert.programs.options import values_of
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.startup import start_tensorflow
from keras_bert.tasks.settings import DEFAULTS
from keras_bert.training.settings import Precision, TrainingSettings

if TYPE_CHECKING:
    from keras_bert.checkpoints.checkpoint import Checkpoint

_NAME = "adapt"
_DEFAULTS = DEFAULTS["fill_mask"]


@dataclass(frozen=True)
class AdaptOptions:
    """The options of the program, with defaults for some megabytes of text."""

    input_file: str = option(
        "",
        "Documents: comma-separated folders, files or globs.",
        required=True,
        may_change=True,
    )
    init_checkpoint: str = option(
        "",
        "Checkpoint to start from, in any format, or run folder; it must have a vocabulary.",
        required=True,
    )
    output_dir: str = option(
        "", "Folder for all files of the adaptation.", required=True, may_change=True
    )
    num_new_words: int = option(
        1000,
        "Maximum number of new words in the vocabulary; 0: none. Default: 1000, about the number "
        "of [unusedN] tokens of the published BERT models, which need no additional rows.",
        min=0,
    )
    min_frequency: int = option(
        20,
        "Minimum number of occurrences of a new word. Default: 20, because the row of a rarer word "
        "would stay close to its initial value, the mean of the rows of its subwords.",
        min=1,
    )
    max_seq_length: int = option(
        128,
        "Number of tokens per record. Default: 128, because longer records cost more time per "
        "token; fine-tuning may still use all positions of the model.",
        min=5,
        max=MAX_SEQ_LENGTH,
    )
    train_batch_size: int = option(
        _DEFAULTS.batch_size,
        "Number of records per training step. Default: 32, because a few megabytes of text are "
        "some thousand records, which larger batches would divide into too few steps.",
        min=1,
        max=MAX_BATCH_SIZE,
    )
    num_train_epochs: float = option(
        float(_DEFAULTS.epochs),
        "Number of passes over the training records. Default: 10, because each pass masks other "
        "tokens, so a small corpus can be read several times.",
        min=0,
        max=MAX_REPEATS,
    )
    num_train_steps: int = option(
        0,
        "Number of training steps. Default: 0, computed from --num_train_epochs, so that it "
        "follows the size of the corpus.",
        min=0,
    )
    learning_rate: float = option(
        _DEFAULTS.learning_rate,
        "Peak learning rate. Default: 5e-5, half of that of pre-training, because the weights are "
        "already trained.",
        min=0,
    )
    warmup_proportion: float = option(
        _DEFAULTS.warmup_proportion,
        "Fraction of the training steps in which the learning rate increases to its peak. Default: "
        "10%, because the optimizer starts without moments and a run of a few thousand steps needs "
        "a larger share than the 1% of pre-training.",
        min=0,
        max=1,
    )
    random_seed: int = option(
        _DEFAULTS.seed, "Seed for new weights, masks, data order and dropout.", min=0, max=MAX_SEED
    )
    jit_compile: bool = same_as(TrainingSettings, "jit_compile")
    gradient_checkpointing: bool = same_as(TrainingSettings, "gradient_checkpointing")
    gradient_accumulation_steps: int = same_as(TrainingSettings, "gradient_accumulation_steps")


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Adapts the model, and prints the comparison of the held-out loss before and after."""
    reject_arguments(arguments)
    input_files = find_input_files(flags.input_file, flags.input_format)
    _check_folders(flags, input_files)
    reading = from_values(Reading, values_of(flags))
    use_compilation_cache()
    start_tensorflow()  # Imported after the checks, so that invalid flags fail fast.
    from keras_bert.programs.adaptation import adapt

    output_dir = Path(flags.output_dir)
    results = adapt(flags, input_files, reading, _open_checkpoint(flags), output_dir)
    runs.finish(results, output_dir, export=False)
    logging.info(
        "Next, fine-tune the model, for example: keras-bert classify --init_checkpoint=%s "
        "--task_name=custom --train_file=TRAIN.csv --eval_file=EVAL.csv --output_dir=CLASSIFIER",
        output_dir,
    )


def _check_folders(flags: FlagValues, input_files: Sequence[str]) -> None:
    """Rejects an output directory with other files, or one that overlaps with what is read."""
    where = f"--output_dir={flags.output_dir}"
    runs.check_output_dir(flags.output_dir, flags.init_checkpoint)
    entries = [entry.strip() for entry in flags.input_file.split(",")]
    runs.check_not_input_folder(flags.output_dir, entries)
    output_dir = Path(flags.output_dir).resolve()
    for folder in filter(os.path.isdir, [*entries, flags.init_checkpoint]):
        if Path(folder).resolve() in output_dir.parents:
            raise InputError(f"{where}: is inside {folder}, which is read; expected another folder")
    for path in input_files:
        if output_dir in Path(path).resolve().parents:
            raise InputError(
                f"{where}: contains the input {path}; expected another folder, so that output and "
                "input stay apart"
            )
    if (output_dir / "run.json").exists():
        settings = read_json(output_dir / "run.json").get("settings")
        if not isinstance(settings, dict) or settings.get("program") != _NAME:
            raise InputError(
                f"{where}: contains the run of another program (run.json); expected a new folder"
            )
    elif output_dir.exists():
        visible = sorted(name for name in os.listdir(output_dir) if not name.startswith("."))
        if visible:
            raise InputError(
                f"{where}: contains other files, such as {visible[0]}; expected a new folder"
            )


def _open_checkpoint(flags: FlagValues) -> "Checkpoint":
    from keras_bert.checkpoints.open import open_checkpoint

    checkpoint = open_checkpoint(flags.init_checkpoint)
    checkpoint.require_vocab("expected a checkpoint with a vocabulary")
    if checkpoint.config.is_decoder:
        raise InputError(
            f"--init_checkpoint={flags.init_checkpoint}: is a left-to-right model (is_decoder); "
            "expected a bidirectional model"
        )
    positions = checkpoint.config.max_position_embeddings
    if flags.max_seq_length > positions:
        raise InputError(
            f"--max_seq_length={flags.max_seq_length}: the model has only {positions} positions; "
            f"expected at most {positions}"
        )
    return checkpoint


PROGRAM = Program(
    _NAME,
    __doc__,
    (AdaptOptions, Reading, Precision),
    main,
    resumable=True,
    defaults={"mixed_precision": None},
)
