r"""Fine-tunes BERT to classify or rate texts or pairs, on GLUE or on your own files.

    keras-bert classify --task_name=MRPC --data_dir=glue --init_checkpoint=bert \
        --output_dir=out

    keras-bert classify --task_name=custom --train_file=train.csv --eval_file=dev.csv \
        --text_column=title --label_column=topic --init_checkpoint=bert --output_dir=out

To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence
from dataclasses import fields

from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import finish
from keras_bert.tasks.defaults import DEFAULTS


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "task_name",
        "",
        "GLUE task (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, ..., AX), or custom for your own files.",
    )
    define.string("data_dir", "", "Folder of GLUE or of the task; with --tfds, TFDS's data_dir.")
    define.boolean(
        "tfds", False, "Read the task from TensorFlow Datasets, which must have prepared it."
    )
    define.string(
        "train_file",
        "",
        "custom: file of training examples (.tsv, .csv, .jsonl, .parquet or .arrow).",
    )
    define.string("eval_file", "", "custom: file of development examples, to evaluate on.")
    define.string("test_file", "", "custom: file of examples to predict. Default: --eval_file.")
    define.string("text_column", "text", "custom: name of the column with the text.")
    define.string(
        "text_pair_column", "", "custom: name of the column with the second text of a pair."
    )
    define.string("label_column", "label", "custom: name of the column with the label.")
    define.string(
        "label_separator", ",", "custom, multi_label: separator between the labels of one example."
    )
    define.enum(
        "problem_type",
        "single_label",
        ["single_label", "multi_label", "regression"],
        "custom: the kind of label: one class, any number of classes, or a number.",
    )
    define.string(
        "class_weights",
        "",
        "Loss weights of the classes: balanced, or comma-separated numbers. Default: equal.",
    )
    define.strings(
        "label_names",
        None,
        "Comma-separated label names of the checkpoint, in the order of its logits. Default: those "
        "in the checkpoint.",
    )
    fine_tuning_flags.define_long_text(define)
    define.enum(
        "window_pooling", "mean", ["mean", "max"], "windows: how the logits of a text are pooled."
    )
    fine_tuning_flags.define_flags(define, DEFAULTS["classification"])
    fine_tuning_flags.define_teacher(define)


# For a user's own files, --nodo_train reads these flags from the run of --init_checkpoint.
FLAGS_OF_THE_RUN = (
    "text_column",
    "text_pair_column",
    "label_column",
    "label_separator",
    "problem_type",
)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Fine-tunes a classifier and prints the final metrics."""
    reject_arguments(arguments)
    names = fine_tuning_flags.long_text_flags(flags)
    fine_tuning_flags.use_flags_of_run(flags, "task_name", *names)
    if flags.task_name.lower() == "custom":
        fine_tuning_flags.use_flags_of_run(flags, *FLAGS_OF_THE_RUN)
    if not flags.task_name:
        raise InputError(
            "--task_name is missing; expected a GLUE task, such as MRPC, or custom for your own "
            "files"
        )
    run = fine_tuning_flags.read(flags)  # Rejects invalid flags before TensorFlow is imported.
    from keras_bert.tasks.classification.data import ClassificationSettings
    from keras_bert.tasks.classification.task import fine_tune_classifier
    from keras_bert.training.cluster import worker_index

    own = {field.name: flags[field.name].value for field in fields(ClassificationSettings)}
    results = fine_tune_classifier(ClassificationSettings(**own), run)
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, flags.export)


PROGRAM = Program("classify", __doc__, define_flags, main, resumable=True)
