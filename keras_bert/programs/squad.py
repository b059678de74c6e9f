r"""Fine-tunes BERT for extractive question answering: SQuAD v1.1 and v2.0.

    keras-bert squad --init_checkpoint=model --train_file=train-v1.1.json \
        --eval_file=dev-v1.1.json --output_dir=out

Without flags, it uses a model under data/, and SQuAD from data/squad or prepared by TensorFlow
Datasets. To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from absl.flags import FlagValues

from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, no_arguments
from keras_bert.programs.run_flags import finish
from keras_bert.tasks.prepared_tfds import find_prepared


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string("data_dir", "", "Folder of SQuAD's own files; with --tfds, that of TFDS.")
    define.boolean("tfds", False, "Take SQuAD from TensorFlow Datasets; downloads nothing.")
    define.string("train_file", "", "Questions to train on, SQuAD's JSON.")
    define.string("eval_file", "", "Answered questions to score after each epoch.")
    define.string("predict_file", "", "Questions to predict; without it, the --eval_file's.")
    define.boolean("version_2_with_negative", False, "Questions may have no answer (v2.0).")
    define.number(
        "null_score_diff_threshold",
        None,
        "A question whose null odds are above it gets the empty answer. Default: 0; for a "
        "--predict_file other than the --eval_file, the threshold of the --eval_file's best F1; "
        "with neither training nor evaluation, the one that the run of --init_checkpoint found.",
    )
    define.integer("max_query_length", 64, "Tokens of a question.", lower_bound=1)
    define.integer("doc_stride", 128, "Tokens between the starts of windows.", lower_bound=1)
    define.integer("n_best_size", 20, "Candidate answers a question.", lower_bound=1)
    define.integer("max_answer_length", 30, "Tokens of an answer.", lower_bound=1)
    define.boolean("strict", False, "Reject training answers that are not in their context.")
    # The hyperparameters of Devlin et al. (2019) for v1.1. The pool is small because a batch of
    # examples of similar length contains few kinds of questions: see benchmarks/README.md.
    fine_tuning_flags.define_flags(
        define,
        max_seq_length=384,
        train_batch_size=12,
        learning_rate=3e-5,
        num_train_epochs=2.0,
        length_pool=4,
    )


# --nodo_train reads these flags from the run of --init_checkpoint.
OF_THE_RUN = (
    "version_2_with_negative",
    "null_score_diff_threshold",
    "max_query_length",
    "doc_stride",
    "n_best_size",
    "max_answer_length",
)

# The default folder, and the names of the files there.
DATA = "data/squad"
FILES = {
    "train_file": ["train-{version}.json"],
    "eval_file": ["dev-{version}.json"],
    "predict_file": [],
}

HELP = """\
found {found}. It needs questions and a model to start from:
  data         data/squad/train-{version}.json and dev-{version}.json (rajpurkar.github.io/
               SQuAD-explorer), or prepared by TFDS: tfds build squad/{version}
  checkpoint   a Hugging Face directory with model.safetensors as data/bert/, or any path as
               --init_checkpoint (Google's TF1 files and KerasHub presets too)
The shortest command once they are there: keras-bert squad; with files elsewhere:
  keras-bert squad --train_file=F --eval_file=F --init_checkpoint=DIR --output_dir=out"""


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Fine-tunes a span labeler and prints the final figures."""
    no_arguments(arguments)
    _complete_flags(flags)
    run = fine_tuning_flags.read(flags)  # Rejects invalid flags before TensorFlow is imported.
    from keras_bert.tasks.question_answering.data import SquadSettings
    from keras_bert.tasks.question_answering.fine_tuning import fine_tune_span_labeler
    from keras_bert.tasks.question_answering.settings import AnswerSettings
    from keras_bert.training.cluster import worker_index

    def values_of(settings: type, *others: str) -> dict[str, object]:
        names = [field.name for field in fields(settings) if field.name not in others]
        return {name: flags[name].value for name in names}

    answers = AnswerSettings(**values_of(AnswerSettings))
    squad = SquadSettings(answers, **values_of(SquadSettings, "answers"))
    results = fine_tune_span_labeler(squad, run)
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, flags.export)


def _complete_flags(flags: FlagValues) -> None:
    """Sets missing flags to the data and checkpoint in the default places."""
    run = fine_tuning_flags.take_from_run(flags, *OF_THE_RUN)
    version = "v2.0" if flags.version_2_with_negative else "v1.1"
    names = {
        flag: [name.format(version=version) for name in known] for flag, known in FILES.items()
    }
    has_data = flags.tfds or fine_tuning_flags.take_files(flags, [Path(DATA)], names)
    if not has_data and find_prepared(f"squad/{version}"):
        fine_tuning_flags.take(flags, "tfds", True)
        has_data = True
    has_dev = flags.do_eval and (flags.eval_file or flags.tfds)
    is_open = flags.version_2_with_negative and flags.null_score_diff_threshold is None
    if run and is_open and not has_dev:  # No development set to find the threshold with.
        fine_tuning_flags.take(flags, "null_score_diff_threshold", run.threshold())
    no_data = "" if has_data else f"no SQuAD {version}"
    help_text = HELP.replace("{version}", version)
    fine_tuning_flags.complete(flags, no_data, f"out/squad-{version}", help_text)


PROGRAM = Program("squad", __doc__, define_flags, main, resumable=True)
