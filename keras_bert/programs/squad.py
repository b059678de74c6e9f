r"""Fine-tunes BERT for extractive question answering: SQuAD v1.1 and v2.0.

    keras-bert squad --init_checkpoint=model --train_file=train-v1.1.json \
        --eval_file=dev-v1.1.json --output_dir=out

To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence
from dataclasses import fields

from absl.flags import FlagValues

from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import finish
from keras_bert.tasks.defaults import DEFAULTS
from keras_bert.tasks.question_answering.data import AnswerSettings, check_doc_stride


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string("data_dir", "", "Folder of the SQuAD files; with --tfds, TFDS's data_dir.")
    define.boolean(
        "tfds", False, "Read SQuAD from TensorFlow Datasets, which must have prepared it."
    )
    define.string("train_file", "", "File of training questions, in SQuAD's JSON format.")
    define.string(
        "eval_file", "", "File of questions with answers, to evaluate on after each epoch."
    )
    define.string(
        "predict_file", "", "File of questions to predict answers for. Default: --eval_file."
    )
    define.boolean(
        "version_2_with_negative", False, "Whether questions may have no answer, as in SQuAD v2.0."
    )
    define.number(
        "null_score_diff_threshold",
        None,
        "A question gets the empty answer if its null odds exceed this threshold. Default: 0. For "
        "a --predict_file other than --eval_file: the threshold of the best F1 on --eval_file. "
        "Without training and evaluation: the threshold stored in the run of --init_checkpoint.",
    )
    define.integer(
        "max_query_length",
        AnswerSettings.max_query_length,
        "Maximum number of tokens in a question.",
        1,
    )
    define.integer(
        "doc_stride",
        AnswerSettings.doc_stride,
        "Number of tokens between the starts of two windows of a context.",
        lower_bound=1,
    )
    define.integer(
        "n_best_size", AnswerSettings.n_best_size, "Number of candidate answers per question.", 1
    )
    define.integer(
        "max_answer_length",
        AnswerSettings.max_answer_length,
        "Maximum number of tokens in an answer.",
        1,
    )
    define.boolean(
        "strict",
        False,
        "Fail if a training answer is not found in its context, instead of skipping it.",
    )
    fine_tuning_flags.define_flags(
        define, DEFAULTS["question_answering"], AnswerSettings.max_seq_length
    )
    fine_tuning_flags.define_teacher(define)


# --nodo_train reads these flags from the run of --init_checkpoint.
FLAGS_OF_THE_RUN = (
    "version_2_with_negative",
    "null_score_diff_threshold",
    "max_query_length",
    "doc_stride",
    "n_best_size",
    "max_answer_length",
)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Fine-tunes a span labeler and prints the final metrics."""
    reject_arguments(arguments)
    earlier = fine_tuning_flags.use_flags_of_run(flags, *FLAGS_OF_THE_RUN)
    if not flags.tfds:
        version = "v2.0" if flags.version_2_with_negative else "v1.1"
        files = {"train_file": [f"train-{version}.json"], "eval_file": [f"dev-{version}.json"]}
        fine_tuning_flags.use_data_dir(flags, files)
    has_dev = flags.do_eval and (flags.eval_file or flags.tfds)
    is_open = flags.version_2_with_negative and flags.null_score_diff_threshold is None
    if earlier and is_open and not has_dev:  # No development set to find the threshold with.
        fine_tuning_flags.use(flags, "null_score_diff_threshold", earlier.threshold())
    if flags["doc_stride"].present:
        check_doc_stride(flags.doc_stride, flags.max_seq_length)
    run = fine_tuning_flags.read(flags)  # Rejects invalid flags before TensorFlow is imported.
    from keras_bert.tasks.question_answering.data import SquadSettings
    from keras_bert.tasks.question_answering.task import fine_tune_span_labeler
    from keras_bert.training.cluster import worker_index

    def values_of(settings: type, *others: str) -> dict[str, object]:
        names = [field.name for field in fields(settings) if field.name not in others]
        return {name: flags[name].value for name in names}

    answers = AnswerSettings(**values_of(AnswerSettings))
    squad = SquadSettings(answers, **values_of(SquadSettings, "answers"))
    results = fine_tune_span_labeler(squad, run)
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, flags.export)


PROGRAM = Program("squad", __doc__, define_flags, main, resumable=True)
