r"""Trains BERT to embed texts, on pairs, triplets or scored pairs of texts.

    keras-bert embed --train_file=pairs.tsv --init_checkpoint=bert --output_dir=out

    keras-bert embed --train_file=sts.jsonl --eval_file=dev.jsonl --loss=cosent \
        --score_range=0,5 --init_checkpoint=bert --output_dir=out

    keras-bert embed --train_file=pairs.tsv --mine_negatives=2 --init_checkpoint=bert \
        --output_dir=mined

Pairs have the columns anchor and positive, and triplets another one with --columns=negative=NAME.
Scored pairs, for --loss=cosent and --loss=cosine, have the columns text_a, text_b and score. Files
are TSV or CSV with a header, JSON, Parquet or Arrow. A BEIR directory has pairs to train on, and
queries and documents to evaluate on. --mine_negatives writes triplets instead of training. With
--nodo_train and without files, it reads a text per line from standard input, and answers with a
line of JSON that has its vector:

    echo "A fine film." | keras-bert embed --nodo_train --init_checkpoint=out

To resume an interrupted run, run the same command again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from absl.flags import FlagValues

from keras_bert.errors import InputError
from keras_bert.options import from_values
from keras_bert.programs import fine_tuning
from keras_bert.programs.options import values_of
from keras_bert.programs.program import Program, answer_lines, reject_arguments
from keras_bert.tasks.settings import EmbeddingSettings

# With --nodo_train, these flags are read from the run of --init_checkpoint.
_FLAGS_OF_THE_RUN = (
    "loss",
    "pooling",
    "columns",
    "score_range",
    "scale",
    "matryoshka_sizes",
    "long_text",
)


def main(flags: FlagValues, arguments: Sequence[str]) -> None:
    """Trains an embedding model and prints the final metrics."""
    reject_arguments(arguments)
    if fine_tuning.reads_lines(flags):
        _answer_lines(flags)
        return
    fine_tuning.check_train_file(flags, PROGRAM.example)
    for name in ("eval_file", "export") if flags.mine_negatives else ():
        if flags[name].value:
            raise InputError(f"--{name}: has no effect with --mine_negatives; expected one of both")
    fine_tuning.use_flags_of_run(flags, *_FLAGS_OF_THE_RUN)
    fine_tuning.run(flags, "embedding", from_values(EmbeddingSettings, values_of(flags)))


def _answer_lines(flags: FlagValues) -> None:
    """Answers each line with its vector."""
    embedder = fine_tuning.open_model(flags, "embedding", pooling=flags.pooling)

    def answer(lines: list[str]) -> Iterator[dict[str, Any]]:
        answers = embedder.predict(lines)
        vectors = answers[embedder.settings.pooling or "mean"].tolist()
        for vector, truncated in zip(vectors, answers["truncated"].tolist(), strict=True):
            yield {"embedding": [round(value, 6) for value in vector], "truncated": truncated}

    answer_lines(answer)


PROGRAM = Program(
    "embed",
    __doc__,
    (EmbeddingSettings, *fine_tuning.SETTINGS),
    main,
    resumable=True,
    defaults=fine_tuning.defaults("embedding"),
    omit=("label_names",),
)
