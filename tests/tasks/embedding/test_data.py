"""Examples of text embeddings: files, arguments, and what a loss can learn from."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert.errors import InputError
from keras_bert.tasks.embedding.data import (
    EmbeddingSettings,
    check_evaluation_rows,
    check_range,
    check_rows,
    check_scores,
    check_training_rows,
    matryoshka_sizes,
    read_evaluation_rows,
    read_training_rows,
)
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.examples import Batcher, Examples
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
    assert settings.make_loss(8).columns == 3
    pairs = (["a", "b"], ["p", "q"])
    assert read_evaluation_rows(settings).columns == pairs
    assert read_training_rows(replace(settings, columns=settings.columns[:2])).columns == pairs


def test_scored_pairs_are_read_and_may_evaluate_another_loss(tmp_path):
    rows = [{"text_a": "a", "text_b": "b", "score": 5}, {"text_a": "c", "text_b": "d", "score": 0}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write(tmp_path / "a.tsv", ("text_a", "text_b", "score"), ("a", "b", "5"), ("c", "d", "0.0"))
    for name in ("a.tsv", "a.parquet"):
        settings = replace(SCORED, train_file=str(tmp_path / name), eval_file=str(tmp_path / name))
        for found in (
            read_training_rows(settings),
            read_evaluation_rows(replace(settings, loss="mnrl")),
        ):
            assert found.columns == (["a", "c"], ["b", "d"])
            assert found.scores.tolist() == [5.0, 0.0]
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
    assert EmbeddingSettings(matryoshka_sizes=["8", "2"]).make_loss(8).sizes == (8, 2)
    for values in (("32",), ("0",), ("a",), ("4", "4"), ("",), (2.9,), (True,)):
        with pytest.raises(InputError, match=r"--sizes: expected different whole .* 1 to 16, the"):
            matryoshka_sizes("--sizes", values, 16)


# --- examples ---

PAIRS = (["a", "b", "c"], ["d", "e", "d"])
MNRL, COSENT, COSINE = (EmbeddingLoss(name) for name in ("mnrl", "cosent", "cosine"))


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


def test_training_batches_have_whole_examples_and_different_dropout_seeds():
    lengths = np.array([2, 3, 9, 2, 4, 4, 2, 2, 5, 7])
    ids = np.repeat(np.arange(10), lengths).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    examples = Examples(ids, ids * 0, starts, {"scores": np.zeros(10)}, group_size=2)
    batcher = Batcher(4, max_seq_length=16, seed=3)
    seen, seeds = [], []
    for batch in batcher.training(examples).take(3):
        index = batch["example_index"].numpy()
        pairs = index.reshape(2, 2)
        real = pairs[:, 0] >= 0
        assert (pairs[real, 0] % 2 == 0).all()
        assert (pairs[real, 1] == pairs[real, 0] + 1).all()
        assert (pairs[~real] == -1).all()
        np.testing.assert_array_equal(batch["example_weights"], index >= 0)
        seen += index[index >= 0].tolist()
        seeds += batch["dropout_seed"].numpy().tolist()
    assert sorted(seen) == [*range(10)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((["a"],),), "texts is a tuple of 1 items; expected a tuple of two lists"),
        (((["a"], ["b"], ["c"]), [1]), "a tuple of 3 items; expected a tuple of two lists of str"),
        (((["a", "b"], ["c"]),), r"texts\[0\] has 2 items, texts\[1\] has 1 items; expected lists"),
        (((["a"], [" "]),), r"texts\[1\]\[0\] is ' '; expected a text"),
        ((PAIRS, [1, 2]), r"texts\[0\] has 3 items, scores has 2 items; expected lists of the"),
        ((PAIRS, 1.0), "scores is 1.0, a float; expected a list of numbers"),
        ((PAIRS, [1, True, 3]), r"scores\[1\] is True; expected a number"),
    ],
)
def test_invalid_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        check_rows("texts", *arguments)


@pytest.mark.parametrize(
    ("arguments", "loss", "batch_size", "message"),
    [
        ((([], []),), MNRL, 2, "texts: has no examples; expected at least one"),
        ((PAIRS,), MNRL, 1, "batch size 1: the loss mnrl compares each pair .* at least 2"),
        ((PAIRS, [0, 1, 0]), COSENT, 1, "batch size 1: the loss cosent compares each pair"),
        ((PAIRS, [1, 1, 1]), COSINE, 2, "texts: all 3 scores are 1, so nothing can be learned"),
    ],
)
def test_examples_from_which_nothing_can_be_learned_are_rejected(
    arguments, loss, batch_size, message
):
    with pytest.raises(InputError, match=message):
        check_training_rows(check_rows("texts", *arguments), loss, batch_size)


def test_scores_must_be_in_the_range_and_differ_to_be_evaluated():
    rows = check_rows("texts", PAIRS, [0, 1.5, -1])
    check_scores(rows, (-1, 2))
    with pytest.raises(InputError, match=r"texts, item 1: the score is 1.5; expected from -1 to 1"):
        check_scores(rows, (-1, 1))
    with pytest.raises(InputError, match="item 0: the score is nan; expected from -1 to 1"):
        check_scores(check_rows("texts", PAIRS, [float("nan"), 0, 1]))
    same = check_rows("texts", PAIRS, [0.5, 0.5, 0.5])
    with pytest.raises(InputError, match=r"all 3 scores are 0.5, so Spearman's correlation is und"):
        check_evaluation_rows(same)
    for value in (("0",), ("a", "b"), (1, 0), (0, float("inf")), 5):
        with pytest.raises(InputError, match=r"range=.*expected the lowest and the highest score"):
            check_range("range", value)
