r"""Fine-tunes BERT for extractive question answering: SQuAD v1.1 and v2.0.

    keras-bert squad --train_file=train-v1.1.json --init_checkpoint=bert --output_dir=out

    keras-bert squad --data_dir=squad --version_2_with_negative --init_checkpoint=bert \
        --output_dir=out

To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence

from absl.flags import FlagValues

from keras_bert.options import from_values, options_of
from keras_bert.programs import fine_tuning
from keras_bert.programs.options import set_flag, values_of
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.runs import RunOptions
from keras_bert.tasks.question_answering.data import AnswerSettings, SquadSettings, check_doc_stride
from keras_bert.tasks.settings import Distillation


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Fine-tunes a span labeler and prints the final metrics."""
    reject_arguments(arguments)
    earlier = fine_tuning.use_flags_of_run(flags, *options_of(AnswerSettings))
    if not flags.tfds:
        version = "v2.0" if flags.version_2_with_negative else "v1.1"
        files = {"train_file": [f"train-{version}.json"], "eval_file": [f"dev-{version}.json"]}
        fine_tuning.use_data_dir(flags, files)
    fine_tuning.check_train_file(flags, PROGRAM.example)
    has_dev = flags.do_eval and (flags.eval_file or flags.tfds)
    is_open = flags.version_2_with_negative and flags.null_score_diff_threshold is None
    if earlier and is_open and not has_dev:  # No development set to find the threshold with.
        set_flag(flags, "null_score_diff_threshold", earlier.threshold())
    if flags["doc_stride"].present:
        check_doc_stride(flags.doc_stride, flags.max_seq_length)
    values = values_of(flags)
    answers = from_values(AnswerSettings, values)
    settings = from_values(SquadSettings, {**values, "answers": answers})
    fine_tuning.run(flags, "question_answering", settings)


PROGRAM = Program(
    "squad",
    __doc__,
    (SquadSettings, AnswerSettings, RunOptions, *fine_tuning.SETTINGS, Distillation),
    main,
    resumable=True,
    defaults=fine_tuning.defaults("question_answering"),
    omit=("label_names",),
)
