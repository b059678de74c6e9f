"""Fine-tunes BERT to answer questions by spans of their contexts: SQuAD v1.1 and v2.0.

    python run_squad.py --init_checkpoint=model --train_file=train-v1.1.json \
        --eval_file=dev-v1.1.json --output_dir=out

Without flags it takes a model under data/, and SQuAD from data/squad or as TensorFlow Datasets
prepared it. The same command again continues an interrupted run.
"""

import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from keras_bert import fine_tuning_flags
from keras_bert.errors import InputError
from keras_bert.program import no_arguments, run
from keras_bert.tasks.prepared_tfds import find_prepared

if TYPE_CHECKING:
    from keras_bert.tasks.squad.questions import Question

FLAGS = flags.FLAGS

# Those of the paper (Devlin et al. 2019) and of the published scores of v1.1.
fine_tuning_flags.define(
    max_seq_length=384,
    train_batch_size=12,
    learning_rate=3e-5,
    num_train_epochs=2.0,
    do_predict=True,
)
flags.DEFINE_string("train_file", "", "Questions to train on, SQuAD's JSON.")
flags.DEFINE_string("eval_file", "", "Answered questions to score after each epoch.")
flags.DEFINE_string("predict_file", "", "Questions to predict; without it, the --eval_file's.")
flags.DEFINE_bool("tfds", False, "Take SQuAD as TensorFlow Datasets prepared it.")
flags.DEFINE_string("tfds_dir", "", "Its folder, if not TFDS_DATA_DIR or ~/tensorflow_datasets.")
flags.DEFINE_bool("version_2_with_negative", False, "Questions may have no answer (v2.0).")
flags.DEFINE_float(
    "null_score_diff_threshold",
    None,
    "Null odds above it give the empty answer; without it 0, and for a --predict_file the one of "
    "the best F1 on the --eval_file.",
)
flags.DEFINE_integer("max_query_length", 64, "Pieces of a question.", lower_bound=1)
flags.DEFINE_integer("doc_stride", 128, "Pieces between the starts of windows.", lower_bound=1)
flags.DEFINE_integer("n_best_size", 20, "Candidates a question.", lower_bound=1)
flags.DEFINE_integer("max_answer_length", 30, "Pieces of an answer.", lower_bound=1)
flags.DEFINE_bool("strict", False, "Refuse training answers that are not in their context.")

DATA = Path("data/squad")
NOTHING_AT_HAND = """\
run_squad.py: found {missing}. It needs questions and a model to start from:
  data         data/squad/train-{version}.json and dev-{version}.json (rajpurkar.github.io/
               SQuAD-explorer), or prepared by TFDS: tfds build squad/{version}
  checkpoint   a Hugging Face directory with model.safetensors as data/bert/, or any path as
               --init_checkpoint (Google's TF1 files and KerasHub presets too)
The shortest command once they are there: python run_squad.py; with files elsewhere:
  python run_squad.py --train_file=F --eval_file=F --init_checkpoint=DIR --output_dir=out
"""


def main(argv: Sequence[str]) -> None:
    """Reads the flags, fine-tunes, and prints the final figures."""
    no_arguments(argv)
    _take_what_is_at_hand()
    given = fine_tuning_flags.read()
    from keras_bert.tasks.fine_tuning.seeds import fine_tune_seeds
    from keras_bert.tasks.fine_tuning.start import find_start
    from keras_bert.tasks.squad.run import SquadSettings, digest, squad_task

    settings = SquadSettings(
        **{field.name: FLAGS[field.name].value for field in fields(SquadSettings)}
    )
    start = find_start(given.settings)
    train, dev, predict = _questions()
    task = squad_task(settings, start.tokenizer(), train, dev, predict)
    record = given.record | {
        f"{name}_sha256": digest(questions)
        for name, questions in (("eval", dev), ("predict", predict))
        if questions is not None
    }
    results = fine_tune_seeds(
        given.settings,
        given.training,
        given.strategy,
        given.output_dir,
        record,
        start,
        task,
        given.seeds,
    )
    fine_tuning_flags.print_results(results)


def _take_what_is_at_hand() -> None:
    """Fills in the flags that a plain command leaves open, or says what to put where and ends."""
    version = _version()
    if not (FLAGS.train_file or FLAGS.eval_file or FLAGS.predict_file or FLAGS.tfds):
        files = {
            "train_file": DATA / f"train-{version}.json",
            "eval_file": DATA / f"dev-{version}.json",
        }
        if all(path.is_file() for path in files.values()):
            for name, path in files.items():
                fine_tuning_flags.take(name, str(path))
        else:
            if not find_prepared(f"squad/{version}", FLAGS.tfds_dir):
                _say_what_is_missing(f"no SQuAD {version}")
            fine_tuning_flags.take("tfds", True)
    if FLAGS.do_train and not (FLAGS.train_file or FLAGS.tfds):
        raise InputError("--do_train needs --train_file or --tfds")
    if not FLAGS.init_checkpoint:
        fine_tuning_flags.take("init_checkpoint", fine_tuning_flags.find_checkpoint())
        if not FLAGS.init_checkpoint:
            _say_what_is_missing("no checkpoint")
    if not FLAGS.output_dir:
        fine_tuning_flags.take("output_dir", f"out/squad-{version}")


def _say_what_is_missing(missing: str) -> None:
    sys.stderr.write(NOTHING_AT_HAND.format(missing=missing, version=_version()))
    sys.exit(1)


def _version() -> str:
    return "v2.0" if FLAGS.version_2_with_negative else "v1.1"


def _questions() -> tuple["list[Question] | None", ...]:
    """Reads the questions to train on, to score and to predict, as far as the flags ask for."""
    from keras_bert.tasks.squad.questions import check_answered, load_questions
    from keras_bert.tasks.squad.tfds import read_tfds

    def read(flag: str, split: str) -> "list[Question] | None":
        if path := FLAGS[flag].value:
            questions = load_questions(path)
            check_answered(questions, path)
            return questions
        return read_tfds(_version(), split, FLAGS.tfds_dir) if FLAGS.tfds else None

    train = read("train_file", "train") if FLAGS.do_train else None
    needs_dev = FLAGS.do_eval or (FLAGS.do_predict and not FLAGS.predict_file)
    dev = read("eval_file", "validation") if needs_dev else None
    predict = load_questions(FLAGS.predict_file) if FLAGS.predict_file else dev
    if not FLAGS.do_predict:
        predict = None
    elif predict is None:
        raise InputError("--do_predict needs --predict_file, --eval_file or --tfds")
    dev = dev if FLAGS.do_eval else None
    if train is dev is predict is None:
        raise InputError("nothing to do: --do_eval needs --eval_file or --tfds")
    return train, dev, predict


if __name__ == "__main__":
    run(main)
