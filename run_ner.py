"""Fine-tunes BERT to find named entities, from CoNLL column files.

    python run_ner.py --train_file=train.conll --eval_file=dev.conll --test_file=test.conll \
        --init_checkpoint=bert --output_dir=out

Without flags it takes a model and the files under data/, or CoNLL-2003 as TensorFlow Datasets
prepared it. The same command again continues an interrupted run.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from absl import flags

from keras_bert.common.errors import InputError
from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.program import finish, no_arguments
from keras_bert.programs.program import run as run_program
from keras_bert.tasks.ner.tfds import tfds_name
from keras_bert.tasks.prepared_tfds import find_prepared

FLAGS = flags.FLAGS

flags.DEFINE_string("data_dir", "", "Folder of train.conll, ...; with --tfds, that of TFDS.")
flags.DEFINE_bool("tfds", False, "Take --task_name from TensorFlow Datasets; downloads nothing.")
flags.DEFINE_string("task_name", "", "With --tfds: conll2003, conll2002/es, wikiann/de, ...")
flags.DEFINE_string("train_file", "", "Column file to train on.")
flags.DEFINE_string("eval_file", "", "Column file to score after each epoch.")
flags.DEFINE_string("test_file", "", "Column file to predict; without it, --eval_file.")
flags.DEFINE_integer("token_column", 0, "Column of the words, from 0; -1 is the last.")
flags.DEFINE_integer("tag_column", -1, "Column of the tags.")
flags.DEFINE_string("comment_prefix", "", "What comments before a sentence begin with, such as #.")
flags.DEFINE_enum(
    "tag_scheme", "", ["", "iob1", "iob2", "bioes"], "By default what fits each file best."
)
flags.DEFINE_bool("strict", False, "Refuse tag sequences that their scheme does not allow.")
flags.DEFINE_bool("document_context", False, "Show sentences between the others of the document.")
flags.DEFINE_bool("label_all_pieces", False, "Train on all pieces of a word, not on the first.")
flags.DEFINE_list(
    "label_names", None, "What the checkpoint's labels are called here, in the order of its logits."
)
# Large pools cost points of F1 where an epoch is short; see benchmarks/README.md.
fine_tuning_flags.define(length_pool=4)

# What is taken of the run whose model predicts a file's words. The scheme is each file's own.
OF_THE_RUN = ("token_column", "tag_column", "comment_prefix")

# Where files are looked for when no flag says it, their names there, and what TFDS may have.
FOLDERS = ("data/ner", "data/ner/*", "data/conll*", "data/wnut*", "data")
FILES = {
    "train_file": ("train.conll", "train.txt", "eng.train", "wnut17train.conll"),
    "eval_file": (
        "dev.conll",
        "valid.conll",
        "dev.txt",
        "valid.txt",
        "eng.testa",
        "emerging.dev.conll",
    ),
    "test_file": ("test.conll", "test.txt", "eng.testb", "emerging.test.annotated"),
}
TFDS = "conll2003"

HELP = """\
run_ner.py: found {found}. It needs column files and a model to start from:
  data         data/ner/train.conll, dev.conll and test.conll: a word and its tag a line, an empty
               line after each sentence; any files as --train_file, --eval_file, --test_file; or
               prepared by TFDS: tfds build conll2003
  checkpoint   a Hugging Face directory with model.safetensors as data/bert/, or any path as
               --init_checkpoint (Google's TF1 files and KerasHub presets too)
The shortest command once they are there:
  python run_ner.py --data_dir=DIR --init_checkpoint=DIR --output_dir=out"""


def main(argv: Sequence[str]) -> None:
    """Reads the flags, fine-tunes, and prints the final figures."""
    no_arguments(argv)
    _complete_flags()
    run = fine_tuning_flags.read()  # Late: bad flags and --help should not wait for TensorFlow.
    from keras_bert.tasks.ner.data import NerSettings
    from keras_bert.tasks.ner.fine_tuning import fine_tune_tagger
    from keras_bert.training.cluster import worker_index

    own = {field.name: FLAGS[field.name].value for field in fields(NerSettings)}
    results = fine_tune_tagger(
        NerSettings(**own),
        run,
    )
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, FLAGS.export)


def _complete_flags() -> None:
    """Fills in what no flag says from what is at hand; else says what to put where, and ends."""
    fine_tuning_flags.take_from_run("document_context", *([] if FLAGS.tfds else OF_THE_RUN))
    if FLAGS.task_name and not FLAGS.tfds:
        raise InputError(f"--task_name={FLAGS.task_name} needs --tfds; files have no task")
    has_data = FLAGS.tfds or fine_tuning_flags.take_files(_folders(), FILES)
    if not has_data and find_prepared(tfds_name(TFDS)):
        fine_tuning_flags.take("task_name", TFDS)
        fine_tuning_flags.take("tfds", True)
        has_data = True
    fine_tuning_flags.complete("" if has_data else "no column files", "out/ner", HELP)


def _folders() -> list[Path]:
    return [path for pattern in FOLDERS for path in sorted(Path().glob(pattern))]


if __name__ == "__main__":
    run_program(main, goes_on=True)
