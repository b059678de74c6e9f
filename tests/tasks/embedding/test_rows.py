"""Tests the checks of pairs, triplets and scored pairs, given as lists."""

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.tasks.embedding.losses import EmbeddingLoss
from keras_bert.tasks.embedding.rows import (
    check_evaluation_rows,
    check_range,
    check_scores,
    check_training_rows,
    given_rows,
)
from keras_bert.tasks.fine_tuning.batches import BatchSettings, training_batches
from keras_bert.tasks.fine_tuning.examples import Examples

PAIRS = (["a", "b", "c"], ["d", "e", "d"])
MNRL, COSENT, COSINE = (EmbeddingLoss(name) for name in ("mnrl", "cosent", "cosine"))


def test_texts_of_an_example_are_consecutive_and_equal_texts_have_one_number():
    rows = given_rows("texts", (*PAIRS, ["f", "a", "g"]))
    assert rows.texts == ["a", "d", "f", "b", "e", "a", "c", "d", "g"]
    assert rows.ids.tolist() == [[0, 1, 2], [3, 4, 0], [5, 1, 6]]


def test_scores_are_divided_by_the_largest_score():
    rows = given_rows("texts", PAIRS, [5, 0, 2.5])
    tokens = np.zeros(12, np.int32)
    examples = rows.labelled(Examples(tokens, tokens, np.arange(0, 13, 2)), 5.0)
    assert examples.labels["scores"].tolist() == [1, 1, 0, 0, 0.5, 0.5]
    assert (examples.group_size, examples.num_groups) == (2, 3)


def test_training_batches_have_whole_examples_and_different_dropout_seeds():
    lengths = np.array([2, 3, 9, 2, 4, 4, 2, 2, 5, 7])
    ids = np.repeat(np.arange(10), lengths).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    examples = Examples(ids, ids * 0, starts, {"scores": np.zeros(10)}, group_size=2)
    settings = BatchSettings(4, max_seq_length=16, seed=3)
    seen, seeds = [], []
    for batch in training_batches(examples, settings).take(3):
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
    with pytest.raises(ValueError, match="10 examples do not form groups of 3"):
        Examples(ids, ids * 0, starts, group_size=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "b"],), r"texts is \['a', 'b'\]; expected a tuple of two lists of strings, or"),
        (((["a"],),), "texts is a tuple of 1 items; expected a tuple of two lists"),
        (((["a"], ["b"], ["c"]), [1]), "a tuple of 3 items; expected a tuple of two lists of str"),
        ((("a", "b"),), r"texts\[0\] is 'a', a str; expected a list of strings"),
        (((["a", 1], ["b", "c"]),), r"texts\[0\]\[1\] is 1, a int; expected a string"),
        (((["a", "b"], ["c"]),), r"texts\[0\] has 2 items, texts\[1\] has 1 items; expected lists"),
        (((["a"], [" "]),), r"texts\[1\]\[0\] is ' '; expected a text"),
        ((PAIRS, [1, 2]), r"texts\[0\] has 3 items, scores has 2 items; expected lists of the"),
        ((PAIRS, 1.0), "scores is 1.0, a float; expected a list of numbers"),
        ((PAIRS, [1, "2", 3]), r"scores\[1\] is '2'; expected a number"),
        ((PAIRS, [1, True, 3]), r"scores\[1\] is True; expected a number"),
        ((PAIRS, [1, float("nan"), 3]), r"scores\[1\] is nan; expected a number"),
    ],
)
def test_invalid_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        given_rows("texts", *arguments)


@pytest.mark.parametrize(
    ("arguments", "loss", "batch_size", "message"),
    [
        ((([], []),), MNRL, 2, "texts: has no examples; expected at least one"),
        ((PAIRS,), MNRL, 1, "batch size 1: the loss mnrl compares each pair .* at least 2"),
        ((PAIRS, [0, 1, 0]), COSENT, 1, "batch size 1: the loss cosent compares each pair"),
        (((["a", "b"], ["c", "c"]),), MNRL, 2, "has no negatives, because each of the 2 pairs is"),
        (((["a", "a"], ["b", "c"]),), MNRL, 2, "has no negatives, because each of the 2 pairs is"),
        (((["a", "b"], ["b", "a"]),), MNRL, 2, "has no negatives, because each of the 2 pairs is"),
        (((["a"], ["c"]),), MNRL, 2, "has no negatives, because each of the 1 pairs is related"),
        (((["a"], ["c"], ["c"]),), MNRL, 1, "texts, item 0: the negative is the same text as the"),
        ((PAIRS, [1, 1, 1]), COSINE, 2, "texts: all 3 scores are 1, so nothing can be learned"),
    ],
)
def test_examples_from_which_nothing_can_be_learned_are_rejected(
    arguments, loss, batch_size, message
):
    with pytest.raises(InputError, match=message):
        check_training_rows(given_rows("texts", *arguments), loss, batch_size)


def test_smallest_usable_examples_are_accepted():
    check_training_rows(given_rows("texts", (["a"], ["b"], ["c"])), MNRL, 1)
    check_training_rows(given_rows("texts", PAIRS, [0, 1, 0]), COSINE, 1)
    check_training_rows(given_rows("texts", PAIRS), MNRL, 2)


def test_scores_must_be_in_the_range_and_differ_to_be_evaluated():
    rows = given_rows("texts", PAIRS, [0, 1.5, -1])
    check_scores(rows, (-1, 2))
    with pytest.raises(InputError, match=r"texts, item 1: the score is 1.5; expected from -1 to 1"):
        check_scores(rows, (-1, 1))
    same = given_rows("texts", PAIRS, [0.5, 0.5, 0.5])
    with pytest.raises(InputError, match=r"all 3 scores are 0.5, so Spearman's correlation is und"):
        check_evaluation_rows(same)
    for value in (("0",), ("a", "b"), (1, 0), (0, float("inf")), 5):
        with pytest.raises(InputError, match=r"range=.*expected the lowest and the highest score"):
            check_range("range", value)
