"""Tests reading pairs, triplets and scored pairs from files."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.common.errors import InputError
from keras_bert.tasks.embedding.data import (
    EmbeddingSettings,
    matryoshka_sizes,
    read_evaluation_rows,
    read_training_rows,
)

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
        anchor_column="question",
        positive_column="answer",
        negative_column="hard",
    )
    assert read_training_rows(settings).columns == (["a", "b"], ["p", "q"], ["n", "m"])
    assert settings.make_loss(8).columns == 3
    assert read_evaluation_rows(settings).columns == (["a", "b"], ["p", "q"])
    assert read_training_rows(replace(settings, negative_column="")).columns == (
        ["a", "b"],
        ["p", "q"],
    )


def test_scored_pairs_of_all_formats(tmp_path):
    rows = [{"text_a": "a", "text_b": "b", "score": 5}, {"text_a": "c", "text_b": "d", "score": 0}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text('text_a,text_b,score\n"a",b,5.0\nc,d,0\n')
    write(tmp_path / "a.tsv", ("text_a", "text_b", "score"), ("a", "b", "5"), ("c", "d", "0.0"))
    names = ["a.jsonl", "a.csv", "a.tsv"]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in [*names, "a.parquet"]:
        found = read_training_rows(replace(SCORED, train_file=str(tmp_path / name)))
        assert found.columns == (["a", "c"], ["b", "d"])
        assert found.scores.tolist() == [5.0, 0.0]


def test_evaluation_may_be_of_the_other_kind(tmp_path):
    file = write(tmp_path / "a.tsv", ("text_a", "text_b", "score"), ("a", "b", "1"))
    settings = EmbeddingSettings(eval_file=file, eval_kind="scored")
    assert read_evaluation_rows(settings).scores.tolist() == [1.0]
    assert read_evaluation_rows(EmbeddingSettings()) is None


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("text_a\tscore", "a\t1", "line 1: has no column 'text_b'; its header is"),
        ("text_a\ttext_b\tscore", "a\tb\t7", "line 2: the score is 7; expected from 0 to 5"),
        ("text_a\ttext_b\tscore", "a\tb\tx", "line 2: expected a number as label, got 'x'"),
        ("text_a\ttext_b\tscore", "a\tb\tnan", "line 2: expected a number as label, got 'nan'"),
        ("text_a\ttext_b\tscore", "a\t \t1", "line 2: the text in 'text_b' is empty; expected"),
        ("text_a\ttext_b\tscore", "a\tb", "line 2: expected 3 columns, got 2"),
        ("text_a\ttext_b\tscore", None, "has no rows; expected at least one"),
    ],
)
def test_invalid_files_are_named_with_the_line(tmp_path, header, row, message):
    file = tmp_path / "a.tsv"
    file.write_text(header + "\n" + (f"{row}\n" if row else ""))
    with pytest.raises(InputError, match=message):
        read_training_rows(replace(SCORED, train_file=str(file)))


def test_texts_must_be_strings(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"anchor": "a", "positive": 5}\n')
    with pytest.raises(InputError, match=r"line 1: expected a text in 'positive', got 5"):
        read_training_rows(EmbeddingSettings(train_file=str(tmp_path / "a.jsonl")))


def test_missing_training_file_is_named():
    with pytest.raises(InputError, match="--train_file is missing; expected a file of examples"):
        read_training_rows(EmbeddingSettings())


def test_matryoshka_sizes_are_sorted_and_at_most_the_hidden_size():
    assert matryoshka_sizes("--sizes", ("4", "16"), 16) == (16, 4)
    assert EmbeddingSettings(matryoshka_sizes=["8", "2"]).make_loss(8).sizes == (8, 2)
    for values in (("32",), ("0",), ("a",), ("4", "4"), ("",), (2.9,), (True,)):
        with pytest.raises(InputError, match=r"--sizes: expected different whole .* 1 to 16, the"):
            matryoshka_sizes("--sizes", values, 16)
