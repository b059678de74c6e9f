"""Fine-tunes BERT to answer questions by spans of their contexts: SQuAD v1.1 and v2.0.

    python run_squad.py --init_checkpoint=model --train_file=train-v1.1.json \
        --eval_file=dev-v1.1.json --output_dir=out

Without flags it takes a model under data/, and SQuAD from data/squad or as TensorFlow Datasets
prepared it. The same command again continues an interrupted run.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from absl import flags

from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.program import finish, no_arguments
from keras_bert.programs.program import run as run_program
from keras_bert.tasks.prepared_tfds import find_prepared

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", "", "Folder of SQuAD's own files; with --tfds, that of TFDS.")
flags.DEFINE_bool("tfds", False, "Take SQuAD from TensorFlow Datasets; downloads nothing.")
flags.DEFINE_string("train_file", "", "Questions to train on, SQuAD's JSON.")
flags.DEFINE_string("eval_file", "", "Answered questions to score after each epoch.")
flags.DEFINE_string("predict_file", "", "Questions to predict; without it, the --eval_file's.")
flags.DEFINE_bool("version_2_with_negative", False, "Questions may have no answer (v2.0).")
flags.DEFINE_float(
    "null_score_diff_threshold",
    None,
    "Null odds above it give the empty answer; without it 0, for another --predict_file than the "
    "--eval_file the one of the latter's best F1, with neither --do_train nor an evaluation the "
    "one that the run --init_checkpoint found.",
)
flags.DEFINE_integer("max_query_length", 64, "Pieces of a question.", lower_bound=1)
flags.DEFINE_integer("doc_stride", 128, "Pieces between the starts of windows.", lower_bound=1)
flags.DEFINE_integer("n_best_size", 20, "Candidates a question.", lower_bound=1)
flags.DEFINE_integer("max_answer_length", 30, "Pieces of an answer.", lower_bound=1)
flags.DEFINE_bool("strict", False, "Refuse training answers that are not in their context.")
# Those of the paper (Devlin et al. 2019) and of the published scores of v1.1; the pool is small
# lest a batch be all of one kind, see benchmarks/README.md.
fine_tuning_flags.define(
    max_seq_length=384,
    train_batch_size=12,
    learning_rate=3e-5,
    num_train_epochs=2.0,
    length_pool=4,
)

# What is taken of the run whose model predicts.
OF_THE_RUN = (
    "version_2_with_negative",
    "null_score_diff_threshold",
    "max_query_length",
    "doc_stride",
    "n_best_size",
    "max_answer_length",
)

# Where files are looked for when no flag says it, and their names there.
DATA = "data/squad"
FILES = {
    "train_file": ["train-{version}.json"],
    "eval_file": ["dev-{version}.json"],
    "predict_file": [],
}

HELP = """\
run_squad.py: found {found}. It needs questions and a model to start from:
  data         data/squad/train-{version}.json and dev-{version}.json (rajpurkar.github.io/
               SQuAD-explorer), or prepared by TFDS: tfds build squad/{version}
  checkpoint   a Hugging Face directory with model.safetensors as data/bert/, or any path as
               --init_checkpoint (Google's TF1 files and KerasHub presets too)
The shortest command once they are there: python run_squad.py; with files elsewhere:
  python run_squad.py --train_file=F --eval_file=F --init_checkpoint=DIR --output_dir=out"""


def main(argv: Sequence[str]) -> None:
    """Reads the flags, fine-tunes, and prints the final figures."""
    no_arguments(argv)
    _complete_flags()
    run = fine_tuning_flags.read()  # Late: bad flags and --help should not wait for TensorFlow.
    from keras_bert.tasks.question_answering.data import SquadSettings
    from keras_bert.tasks.question_answering.run import fine_tune_span_labeler
    from keras_bert.training.cluster import worker_index

    own = {field.name: FLAGS[field.name].value for field in fields(SquadSettings)}
    results = fine_tune_span_labeler(
        SquadSettings(**own),
        run,
    )
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, FLAGS.export)


def _complete_flags() -> None:
    """Fills in what no flag says from what is at hand; else says what to put where, and ends."""
    run = fine_tuning_flags.take_from_run(*OF_THE_RUN)
    version = "v2.0" if FLAGS.version_2_with_negative else "v1.1"
    names = {
        flag: [name.format(version=version) for name in known] for flag, known in FILES.items()
    }
    has_data = FLAGS.tfds or fine_tuning_flags.take_files([Path(DATA)], names)
    if not has_data and find_prepared(f"squad/{version}"):
        fine_tuning_flags.take("tfds", True)
        has_data = True
    has_dev = FLAGS.do_eval and (FLAGS.eval_file or FLAGS.tfds)
    is_open = FLAGS.version_2_with_negative and FLAGS.null_score_diff_threshold is None
    if run and is_open and not has_dev:  # There is nothing to find it by.
        fine_tuning_flags.take("null_score_diff_threshold", run.threshold())
    fine_tuning_flags.complete(
        "" if has_data else f"no SQuAD {version}",
        f"out/squad-{version}",
        HELP.replace("{version}", version),
    )


if __name__ == "__main__":
    run_program(main, goes_on=True)
