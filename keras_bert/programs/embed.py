r"""Trains BERT to embed texts, on pairs, triplets or scored pairs of texts.

    keras-bert embed --train_file=pairs.tsv --eval_file=dev.tsv --init_checkpoint=bert \
        --output_dir=out

    keras-bert embed --train_file=sts.jsonl --eval_file=dev.jsonl --loss=cosent \
        --score_range=0,5 --init_checkpoint=bert --output_dir=out

Pairs have the columns anchor and positive; triplets also have --negative_column. Scored pairs, for
--loss=cosent and --loss=cosine, have the columns text_a, text_b and score. Files are TSV or CSV
with a header, JSONL, Parquet or Arrow. To resume an interrupted run, run the same command again.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from absl.flags import FlagValues

from keras_bert.programs import fine_tuning_flags
from keras_bert.programs.compilation_cache import use_compilation_cache
from keras_bert.programs.flags import Definitions
from keras_bert.programs.program import Program, reject_arguments
from keras_bert.programs.run_flags import finish
from keras_bert.startup import start_tensorflow
from keras_bert.tasks.defaults import DEFAULTS


def define_flags(define: Definitions) -> None:
    """Defines the program's flags."""
    define.string(
        "train_file", "", "File of training examples (.tsv, .csv, .jsonl, .parquet or .arrow)."
    )
    define.string("eval_file", "", "File of development examples, to evaluate on.")
    define.enum(
        "loss",
        "mnrl",
        ["mnrl", "cosent", "cosine"],
        "mnrl, for pairs and triplets: each positive must rank above all other positives and "
        "negatives of its batch. cosent, for scored pairs: cosines must have the order of the "
        "scores. cosine, for scored pairs: cosines must equal the scores.",
    )
    define.number("scale", 20.0, "Factor of the cosines in mnrl and cosent; 1 / temperature.", 0.0)
    define.enum(
        "pooling",
        None,
        ["mean", "cls"],
        "The vector of a text: the mean over its tokens, or [CLS]. Default: that of the "
        "checkpoint, or else mean.",
    )
    define.strings(
        "matryoshka_sizes",
        [],
        "Comma-separated sizes; the loss is the mean over vectors truncated to these sizes.",
    )
    define.enum(
        "eval_kind",
        None,
        ["pairs", "scored"],
        "The examples of --eval_file, which need not be of the kind of the training examples. "
        "Default: that of --loss.",
    )
    define.string("anchor_column", "anchor", "Pairs: name of the column with the anchors.")
    define.string("positive_column", "positive", "Pairs: name of the column with the positives.")
    define.string(
        "negative_column", "", "Triplets: name of the column with the negatives. Default: pairs."
    )
    define.string("text_a_column", "text_a", "Scored pairs: name of the first text's column.")
    define.string("text_b_column", "text_b", "Scored pairs: name of the second text's column.")
    define.string("score_column", "score", "Scored pairs: name of the column with the scores.")
    define.strings(
        "score_range",
        ["-1", "1"],
        "Lowest and highest score. For --loss=cosine, scores are divided by the larger of their "
        "absolute values.",
    )
    fine_tuning_flags.define_long_text(define)
    fine_tuning_flags.define_flags(define, DEFAULTS["embedding"])


# With --nodo_train, these flags are read from the run of --init_checkpoint.
FLAGS_OF_THE_RUN = (
    "loss",
    "pooling",
    "eval_kind",
    "anchor_column",
    "positive_column",
    "text_a_column",
    "text_b_column",
    "negative_column",
    "score_column",
    "score_range",
    "scale",
    "matryoshka_sizes",
)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Trains an embedding model and prints the final metrics."""
    reject_arguments(arguments)
    long_text = fine_tuning_flags.long_text_flags(flags)
    fine_tuning_flags.use_flags_of_run(flags, *FLAGS_OF_THE_RUN, *long_text)
    length = flags["max_seq_length"]
    if not length.present and length.value == length.default:  # Not that of an earlier run.
        fine_tuning_flags.use(flags, "max_seq_length", _saved_length(Path(flags.init_checkpoint)))
    run = fine_tuning_flags.read(flags)  # Rejects invalid flags before TensorFlow is imported.
    from keras_bert.tasks.embedding.data import EmbeddingSettings
    from keras_bert.tasks.embedding.task import fine_tune_embedder
    from keras_bert.training.cluster import worker_index

    own = {field.name: flags[field.name].value for field in fields(EmbeddingSettings)}
    results = fine_tune_embedder(EmbeddingSettings(**own), run)
    if worker_index(run.strategy) == 0:
        finish(results, run.output_dir, flags.export)


def _saved_length(path: Path) -> int | None:
    """Returns the length in the files of sentence-transformers; None if there are none."""
    folders = [folder for folder in (path, path / "model") if (folder / "modules.json").is_file()]
    if not folders:
        return None
    use_compilation_cache()
    start_tensorflow()
    from keras_bert.checkpoints.sentence_transformers import SentenceTransformer

    return SentenceTransformer.of(folders[0]).max_seq_length


PROGRAM = Program("embed", __doc__, define_flags, main, resumable=True)
