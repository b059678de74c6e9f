r"""Fine-tunes BERT for named-entity recognition, on column files or on texts with entities.

    keras-bert ner --train_file=train.conll --eval_file=dev.conll --test_file=test.conll \
        --init_checkpoint=bert --output_dir=out

Files that end in .jsonl, .json, .parquet or .arrow have texts and their entities, with character
offsets, or words and their tags.

To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence
from dataclasses import fields

from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import finish
from keras_bert.tasks.defaults import DEFAULTS


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "data_dir",
        "",
        "Folder of train.conll, dev.conll and test.conll, or of .jsonl files; with --tfds, TFDS's "
        "data_dir.",
    )
    define.boolean(
        "tfds", False, "Read --task_name from TensorFlow Datasets, which must have prepared it."
    )
    define.string(
        "task_name", "", "With --tfds: the dataset, such as conll2003, conll2002/es or wikiann/de."
    )
    define.string(
        "train_file",
        "",
        "File to train on: a column file, or texts with entities or words with tags (.jsonl, "
        ".json, .parquet or .arrow).",
    )
    define.string("eval_file", "", "File to evaluate on after each epoch.")
    define.string("test_file", "", "File to predict. Default: --eval_file.")
    define.integer("token_column", 0, "Index of the column with the words, from 0; -1 is the last.")
    define.integer("tag_column", -1, "Index of the column with the tags, from 0; -1 is the last.")
    define.string(
        "comment_prefix",
        "",
        "Prefix of comment lines before a sentence, such as #. Default: no comments.",
    )
    define.enum(
        "tag_scheme",
        "",
        ["", "iob1", "iob2", "bioes", "bilou", "bmes", "bmewo", "io"],
        "Scheme of the tags. Default: detected for each file.",
    )
    define.boolean("strict", False, "Reject tag sequences that their scheme does not allow.")
    define.boolean(
        "document_context",
        False,
        "Add the neighboring sentences of the document to the input of each sentence.",
    )
    define.boolean(
        "label_all_tokens",
        False,
        "Train on the labels of all tokens of a word, instead of only the first token.",
    )
    define.strings(
        "label_names",
        None,
        "Comma-separated label names of the checkpoint, in the order of its logits. Default: those "
        "in the checkpoint.",
    )
    fine_tuning_flags.define_flags(define, DEFAULTS["ner"])
    fine_tuning_flags.define_teacher(define)


# --nodo_train reads these flags from the run of --init_checkpoint; not the tag scheme, which is
# detected for each file.
FLAGS_OF_THE_RUN = ("token_column", "tag_column", "comment_prefix")

# The names of the files in --data_dir.
FILES = {
    "train_file": ("train.conll", "train.txt", "eng.train", "wnut17train.conll", "train.jsonl"),
    "eval_file": (
        "dev.conll",
        "valid.conll",
        "dev.txt",
        "valid.txt",
        "eng.testa",
        "emerging.dev.conll",
        "dev.jsonl",
        "valid.jsonl",
    ),
    "test_file": (
        "test.conll",
        "test.txt",
        "eng.testb",
        "emerging.test.annotated",
        "test.jsonl",
    ),
}


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Fine-tunes a tagger and prints the final metrics."""
    reject_arguments(arguments)
    names = () if flags.tfds else FLAGS_OF_THE_RUN
    fine_tuning_flags.use_flags_of_run(flags, "document_context", *names)
    if flags.task_name and not flags.tfds:
        raise InputError(
            f"--task_name={flags.task_name} can only be used with --tfds; expected --tfds, or no "
            "--task_name"
        )
    if not flags.tfds:
        fine_tuning_flags.use_data_dir(flags, FILES)
    run = fine_tuning_flags.read(flags)  # Rejects invalid flags before TensorFlow is imported.
    from keras_bert.tasks.ner.data import NerSettings
    from keras_bert.tasks.ner.task import fine_tune_tagger
    from keras_bert.training.cluster import worker_index

    own = {field.name: flags[field.name].value for field in fields(NerSettings)}
    results = fine_tune_tagger(NerSettings(**own), run)
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, flags.export)


PROGRAM = Program("ner", __doc__, define_flags, main, resumable=True)
