r"""Fine-tunes BERT to classify or rate texts or pairs, on GLUE or on your own files.

    keras-bert classify --task_name=MRPC --data_dir=glue --init_checkpoint=bert \
        --output_dir=out

    keras-bert classify --task_name=custom --train_file=train.csv --eval_file=dev.csv \
        --text_column=title --label_column=topic --init_checkpoint=bert --output_dir=out

To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence

from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.options import from_values
from keras_bert.programs import fine_tuning
from keras_bert.programs.options import values_of
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.tasks.settings import ClassificationSettings, Distillation

# For a user's own files, --nodo_train reads these flags from the run of --init_checkpoint.
_FLAGS_OF_THE_RUN = (
    "text_column",
    "text_pair_column",
    "label_column",
    "problem_type",
)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Fine-tunes a classifier and prints the final metrics."""
    reject_arguments(arguments)
    fine_tuning.use_flags_of_run(flags, "task_name", "long_text")
    if flags.task_name.lower() == "custom":
        fine_tuning.use_flags_of_run(flags, *_FLAGS_OF_THE_RUN)
    if not flags.task_name:
        raise InputError(
            "--task_name is missing; expected a GLUE task, such as MRPC, or custom for your own "
            "files"
        )
    # Rejects invalid flags before TensorFlow is imported.
    run = fine_tuning.read(flags, "classification")
    from keras_bert.tasks.classification.task import fine_tune_classifier

    settings = from_values(ClassificationSettings, values_of(flags))
    fine_tuning.finish(flags, run, fine_tune_classifier(settings, run))


PROGRAM = Program(
    "classify",
    __doc__,
    (ClassificationSettings, *fine_tuning.SETTINGS, Distillation),
    main,
    resumable=True,
    defaults=fine_tuning.defaults("classification"),
)
