r"""Fine-tunes BERT to classify or rate texts or pairs, on GLUE or on your own files.

    keras-bert classify --task_name=MRPC --data_dir=glue --init_checkpoint=bert \
        --output_dir=out

    keras-bert classify --task_name=custom --train_file=train.csv --eval_file=dev.csv \
        --text_column=title --label_column=topic --init_checkpoint=bert --output_dir=out

Without --task_name or --data_dir, it uses a task found under data/ or prepared by TensorFlow
Datasets. To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from absl.flags import FlagValues

from keras_bert.programs import fine_tuning_flags, missing_flags
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import finish
from keras_bert.tasks.classification.glue import TASKS, GlueTask, find_task
from keras_bert.tasks.classification.texts import find_glue_folder
from keras_bert.tasks.defaults import DEFAULTS
from keras_bert.tasks.prepared_tfds import find_prepared


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

# The folders in which the folder of a GLUE task is searched for by default.
DATA = ("data/glue", "data", "glue_data", "data/glue_data")

HELP = """\
found {found}. Required: a task, and a model to start from:
  data         a GLUE folder such as data/glue/MRPC/{{train,dev,test}}.tsv; or a task prepared by
               TFDS (tfds build glue/mrpc); or your own files (--task_name=custom, see --help)
  checkpoint   a Hugging Face directory with model.safetensors in data/bert/; or any checkpoint
               given as --init_checkpoint (Google's TF1 files and KerasHub presets too)
The shortest command with both in place:
  keras-bert classify --task_name=MRPC --data_dir=DIR --init_checkpoint=DIR --output_dir=out"""


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Fine-tunes a classifier and prints the final metrics."""
    reject_arguments(arguments)
    _complete_flags(flags)
    run = fine_tuning_flags.read(flags)  # Rejects invalid flags before TensorFlow is imported.
    from keras_bert.tasks.classification.data import ClassificationSettings
    from keras_bert.tasks.classification.fine_tuning import fine_tune_classifier
    from keras_bert.training.cluster import worker_index

    own = {field.name: flags[field.name].value for field in fields(ClassificationSettings)}
    results = fine_tune_classifier(ClassificationSettings(**own), run)
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, flags.export)


def _complete_flags(flags: FlagValues) -> None:
    missing_flags.use_flags_of_run(flags, "task_name", *fine_tuning_flags.long_text_flags(flags))
    is_custom = flags.task_name.lower() == "custom"
    if is_custom:
        missing_flags.use_flags_of_run(flags, *FLAGS_OF_THE_RUN)
    named = [find_task(flags.task_name)] if flags.task_name and not is_custom else []
    if not (flags.data_dir or flags.tfds or is_custom):
        _find_data(flags, named or [task for task in TASKS if task.train])
    no_data = "" if flags.task_name else "no task"
    missing_flags.complete_flags(flags, no_data, f"out/{flags.task_name}", HELP)


def _find_data(flags: FlagValues, tasks: Sequence[GlueTask]) -> None:
    """Sets --task_name and --data_dir, or --task_name and --tfds, to the first task with data.

    `tasks` are searched for in the default folders first, then in the data prepared by TFDS.
    """
    for task in tasks:
        for folder in [Path(data) / name for data in DATA for name in (task.name, *task.folders)]:
            if find_glue_folder(task, folder):
                missing_flags.use(flags, "task_name", task.name)
                return missing_flags.use(flags, "data_dir", str(folder))
    for task in tasks:
        if find_prepared(f"glue/{task.tfds}"):
            missing_flags.use(flags, "task_name", task.name)
            return missing_flags.use(flags, "tfds", True)
    return None


PROGRAM = Program("classify", __doc__, define_flags, main, resumable=True)
