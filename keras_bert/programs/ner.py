r"""Fine-tunes BERT for named-entity recognition, on column files or on texts with entities.

    keras-bert ner --train_file=train.conll --init_checkpoint=bert --output_dir=out

    keras-bert ner --nodo_train --predict_file=texts.jsonl --init_checkpoint=out \
        --output_dir=predictions

Files that end in .jsonl, .json, .parquet or .arrow have texts and their entities, with character
offsets, or words and their tags.

To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence

from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.options import from_values
from keras_bert.programs import fine_tuning
from keras_bert.programs.options import values_of
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.runs import RunOptions
from keras_bert.tasks.settings import Distillation, NerSettings

# The names of the files in --data_dir.
_FILES = {
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
    "predict_file": (
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
    # Not the tag scheme of the run, which is detected for each file.
    names = ("document_context",) if flags.tfds else ("document_context", "columns")
    fine_tuning.use_flags_of_run(flags, *names)
    if flags.task_name and not flags.tfds:
        raise InputError(
            f"--task_name={flags.task_name} can only be used with --tfds; expected --tfds, or no "
            "--task_name"
        )
    if not flags.tfds:
        fine_tuning.use_data_dir(flags, _FILES)
    fine_tuning.check_train_file(flags, PROGRAM.example)
    fine_tuning.run(flags, "ner", from_values(NerSettings, values_of(flags)))


PROGRAM = Program(
    "ner",
    __doc__,
    (NerSettings, RunOptions, *fine_tuning.SETTINGS, Distillation),
    main,
    resumable=True,
    defaults=fine_tuning.defaults("ner"),
)
