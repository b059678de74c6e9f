"""Fine-tunes BERT to classify texts or pairs, or to rate them: GLUE, or files of your own.

    python run_classifier.py --task_name=MRPC --data_dir=glue --init_checkpoint=bert \
        --output_dir=out

    python run_classifier.py --task_name=custom --train_file=train.csv --eval_file=dev.csv \
        --text_column=title --label_column=topic --init_checkpoint=bert --output_dir=out

Without --task_name or --data_dir it takes what lies under data/ or is prepared by TensorFlow
Datasets. The same command again continues an interrupted run.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from absl import flags

from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.program import finish, no_arguments
from keras_bert.programs.program import run as run_program
from keras_bert.tasks.classification.glue import TASKS, GlueTask, find_task
from keras_bert.tasks.classification.texts import find_glue_folder
from keras_bert.tasks.prepared_tfds import find_prepared

FLAGS = flags.FLAGS

flags.DEFINE_string("task_name", "", "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, ..., AX, or custom.")
flags.DEFINE_string("data_dir", "", "Folder of GLUE or of the task; with --tfds, that of TFDS.")
flags.DEFINE_bool("tfds", False, "Take the task from TensorFlow Datasets; downloads nothing.")
flags.DEFINE_string("train_file", "", "custom: training examples, .tsv, .csv or .jsonl.")
flags.DEFINE_string("eval_file", "", "custom: development examples.")
flags.DEFINE_string("test_file", "", "custom: examples to predict; without it, --eval_file.")
flags.DEFINE_string("text_column", "text", "custom: column of the text.")
flags.DEFINE_string("text_pair_column", "", "custom: column of the second text of a pair.")
flags.DEFINE_string("label_column", "label", "custom: column of the label.")
flags.DEFINE_string("label_separator", ",", "custom: parts the labels of one example.")
flags.DEFINE_enum(
    "problem_type",
    "single_label",
    ["single_label", "multi_label", "regression"],
    "custom: one class, any number of classes, or a number.",
)
flags.DEFINE_string("class_weights", "", "What a class weighs: balanced, or numbers by comma.")
flags.DEFINE_list(
    "label_names", None, "What the checkpoint's labels are called here, in the order of its logits."
)
fine_tuning_flags.define()

# What is taken of the run whose model predicts texts in files of one's own.
OF_THE_RUN = (
    "text_column",
    "text_pair_column",
    "label_column",
    "label_separator",
    "problem_type",
)

# Where a task's data is looked for when no flag says it.
DATA = ("data/glue", "data", "glue_data", "data/glue_data")

HELP = """\
run_classifier.py: found {found}. It needs a task and a model to start from:
  data         a GLUE folder as data/glue/MRPC/{{train,dev,test}}.tsv, or prepared by TFDS:
               tfds build glue/mrpc; or your own files (--task_name=custom, see --help)
  checkpoint   a Hugging Face directory with model.safetensors as data/bert/, or any path as
               --init_checkpoint (Google's TF1 files and KerasHub presets too)
The shortest command once they are there:
  python run_classifier.py --task_name=MRPC --data_dir=DIR --init_checkpoint=DIR --output_dir=out"""


def main(argv: Sequence[str]) -> None:
    """Reads the flags, fine-tunes, and prints the final figures."""
    no_arguments(argv)
    _complete_flags()
    run = fine_tuning_flags.read()  # Late: bad flags and --help should not wait for TensorFlow.
    from keras_bert.tasks.classification.run import fine_tune_classifier

    from keras_bert.tasks.classification.data import ClassificationSettings
    from keras_bert.training.cluster import worker_index

    own = {field.name: FLAGS[field.name].value for field in fields(ClassificationSettings)}
    results = fine_tune_classifier(
        ClassificationSettings(**own),
        run,
    )
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, FLAGS.export)


def _complete_flags() -> None:
    """Fills in what no flag says from what is at hand; else says what to put where, and ends."""
    fine_tuning_flags.take_from_run("task_name")
    is_custom = FLAGS.task_name.lower() == "custom"
    if is_custom:
        fine_tuning_flags.take_from_run(*OF_THE_RUN)
    named = [find_task(FLAGS.task_name)] if FLAGS.task_name and not is_custom else []
    if not (FLAGS.data_dir or FLAGS.tfds or is_custom):
        _find_data(named or [task for task in TASKS if task.train])
    no_data = "" if FLAGS.task_name else "no task"
    fine_tuning_flags.complete(no_data, f"out/{FLAGS.task_name}", HELP)


def _find_data(tasks: Sequence[GlueTask]) -> None:
    """Takes the first of some tasks that is at hand, as files or prepared by TFDS."""
    for task in tasks:
        for folder in [Path(data) / name for data in DATA for name in (task.name, *task.folders)]:
            if find_glue_folder(task, folder):
                fine_tuning_flags.take("task_name", task.name)
                return fine_tuning_flags.take("data_dir", str(folder))
    for task in tasks:
        if find_prepared(f"glue/{task.tfds}"):
            fine_tuning_flags.take("task_name", task.name)
            return fine_tuning_flags.take("tfds", True)
    return None


if __name__ == "__main__":
    run_program(main, goes_on=True)
