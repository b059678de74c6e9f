"""Examples of text embeddings: files, arguments, and what a loss can learn from."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.embedding.data import (
    EmbeddingSettings,
    check_range,
    check_rows,
    make_loss,
    matryoshka_sizes,
    read_evaluation_rows,
    read_training_rows,
)
from keras_bert.tasks.examples import Examples
from keras_bert.tasks.prepared import Prepared

SCORED = EmbeddingSettings(loss="cosent", score_range=("0", "5"))


def write(path, header, *rows):
    path.write_text("\n".join(["\t".join(row) for row in (header, *rows)]) + "\n")
    return str(path)


def test_columns_are_found_by_their_names(tmp_path):
    header = ("hard", "answer", "id", "question")
    file = write(tmp_path / "a.tsv", header, ("n", "p", "1", "a"), ("m", "q", "2", "b"))
    settings = EmbeddingSettings(
        train_file=file,
        eval_file=file,
        columns=("anchor=question", "positive=answer", "negative=hard"),
    )
    assert read_training_rows(settings).columns == (["a", "b"], ["p", "q"], ["n", "m"])
    assert make_loss(settings, 8).columns == 3
    pairs = (["a", "b"], ["p", "q"])
    assert read_evaluation_rows(settings).columns == pairs
    assert read_training_rows(replace(settings, columns=settings.columns[:2])).columns == pairs


def test_scored_pairs_are_scaled_for_training_and_may_evaluate_another_loss(tmp_path):
    rows = [{"text_a": "a", "text_b": "b", "score": 5}, {"text_a": "c", "text_b": "d", "score": 0}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.tsv", ("text_a", "text_b", "score"), ("a", "b", "5"), ("c", "d", "0.0"))
    for name in ("a.tsv", "a.parquet"):
        settings = replace(SCORED, train_file=str(tmp_path / name), eval_file=str(tmp_path / name))
        evaluated = read_evaluation_rows(replace(settings, loss="mnrl"))
        for examples, scores in ((read_training_rows(settings), [1.0, 0.0]), (evaluated, [5, 0])):
            assert examples.columns == (["a", "c"], ["b", "d"])
            assert examples.scores.tolist() == scores
    assert read_evaluation_rows(EmbeddingSettings()) is None
    with pytest.raises(InputError, match="--train_file is missing; expected a file of examples"):
        read_training_rows(EmbeddingSettings())


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("text_a\tscore", "a\t1", "line 1: has no column 'text_b'; its header is"),
        ("text_a\ttext_b\tscore", "a\tb\t7", "line 2: the score is 7; expected from 0 to 5"),
        ("text_a\ttext_b\tscore", "a\tb\tx", "line 2: expected a number as label, got 'x'"),
    ],
)
def test_invalid_files_are_named_with_the_line(tmp_path, header, row, message):
    file = tmp_path / "a.tsv"
    file.write_text(f"{header}\n{row}\n")
    with pytest.raises(InputError, match=message):
        read_training_rows(replace(SCORED, train_file=str(file)))


def test_matryoshka_sizes_are_sorted_and_at_most_the_hidden_size():
    assert matryoshka_sizes("--sizes", ("4", "16"), 16) == (16, 4)
    assert make_loss(EmbeddingSettings(matryoshka_sizes=["8", "2"]), 8).sizes == (8, 2)
    for values in (("32",), ("0",), ("a",), ("4", "4"), ("",), (2.9,), (True,)):
        with pytest.raises(InputError, match=r"--sizes: expected different whole .* 1 to 16, the"):
            matryoshka_sizes("--sizes", values, 16)


# --- examples ---

PAIRS = (["a", "b", "c"], ["d", "e", "d"])


def test_texts_of_an_example_are_consecutive_and_equal_texts_have_one_number():
    rows = check_rows("texts", (*PAIRS, ["f", "a", "g"]))
    assert rows.texts == ["a", "d", "f", "b", "e", "a", "c", "d", "g"]
    tokens = np.zeros(18, np.int32)
    examples = Examples(tokens, tokens, np.arange(0, 19, 2))
    labelled = rows.labeled(Prepared(examples, [])).examples
    assert labelled.labels["text_ids"].tolist() == [0, 1, 2, 3, 4, 0, 5, 1, 6]
    assert (labelled.group_size, labelled.num_groups) == (3, 3)
    labelled = check_rows("texts", PAIRS, [1, 0, 0.5]).labeled(Prepared(examples, [])).examples
    assert labelled.labels["scores"].tolist() == [1, 1, 0, 0, 0.5, 0.5]


@pytest.mark.parametrize("value", [("0",), ("a", "b"), (1, 0), (0, float("inf")), 5])
def test_range_of_scores_must_have_two_ends(value):
    with pytest.raises(InputError, match=r"range=.*expected the lowest and the highest score"):
        check_range("range", value)
