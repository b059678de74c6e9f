r"""Fine-tunes BERT to classify or rate texts or pairs, on GLUE or on your own files.

    keras-bert classify --train_file=train.csv --init_checkpoint=bert --output_dir=out

    keras-bert classify --task_name=MRPC --data_dir=glue --init_checkpoint=bert \
        --output_dir=out

With --nodo_train and without files, it reads a text per line from standard input, with a tab
between the texts of a pair, and answers with a line of JSON:

    echo "A fine film." | keras-bert classify --nodo_train --init_checkpoint=out

To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence
from typing import Any

from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.options import from_values
from keras_bert.programs import fine_tuning
from keras_bert.programs.options import set_flag, values_of
from keras_bert.programs.program import Program, answer_lines, reject_arguments
from keras_bert.tasks.settings import ClassificationSettings, Distillation


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Fine-tunes a classifier and prints the final metrics."""
    reject_arguments(arguments)
    if fine_tuning.reads_lines(flags):
        _answer_lines(flags)
        return
    fine_tuning.use_flags_of_run(flags, "task_name", "long_text")
    if not flags.task_name and (flags.train_file or flags.eval_file or flags.predict_file):
        set_flag(flags, "task_name", "custom")
    if flags.task_name.lower() == "custom":
        fine_tuning.use_flags_of_run(flags, "columns", "problem_type")
    if not flags.task_name:
        raise InputError(
            "--train_file is required, or for GLUE --task_name and --data_dir; the shortest "
            f"command is: {PROGRAM.example}"
        )
    settings = from_values(ClassificationSettings, values_of(flags))
    fine_tuning.run(flags, "classification", settings)


def _answer_lines(flags: FlagValues) -> None:
    """Answers lines, texts or pairs with a tab, with the objects of a prediction file."""
    classifier = fine_tuning.open_model(flags, "classification")
    from keras_bert.tasks.classification.processor import prediction_records

    pair = classifier.settings.pair

    def answer(lines: list[str]) -> list[dict[str, Any]]:
        nonlocal pair
        pair = "\t" in lines[0] if pair is None else pair  # The first line decides.
        count = 2 if pair else 1
        rows = [line.split("\t") if line else [""] * count for line in lines]
        for line, row in zip(lines, rows, strict=True):
            if len(row) != count:
                raise InputError(
                    f"standard input: {line[:80]!r} has {len(row)} texts, separated by tabs; the "
                    f"model expects {count}"
                )
        columns = tuple(map(list, zip(*rows, strict=True)))
        answers = classifier.predict(columns if pair else columns[0])
        records = prediction_records(classifier.settings, answers)
        return [
            {**record, "truncated": bool(truncated)}
            for record, truncated in zip(records, answers["truncated"], strict=True)
        ]

    answer_lines(answer)


PROGRAM = Program(
    "classify",
    __doc__,
    (ClassificationSettings, *fine_tuning.SETTINGS, Distillation),
    main,
    resumable=True,
    defaults=fine_tuning.defaults("classification"),
)
