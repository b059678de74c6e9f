"""Tests the scores of embeddings against values computed by hand."""

import numpy as np
import pytest

from keras_bert.tasks.embedding.data import check_rows
from keras_bert.tasks.embedding.search import score_embeddings


def unit(degrees):
    """Returns vectors of two dimensions at angles."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def test_correlations_are_those_of_cosines_and_scores():
    rows = check_rows("texts", (["a", "b", "c"], ["d", "e", "f"]), [1.0, 0.5, 0.4])
    vectors = 3 * unit([0, 10, 0, 80, 0, 60])  # Cosines do not depend on the length.
    scores = score_embeddings(rows, vectors)
    assert scores["spearman"] == pytest.approx(0.5)
    cosines = np.cos(np.radians([10, 80, 60]))
    assert scores["pearson"] == pytest.approx(np.corrcoef(cosines, rows.scores)[0, 1], abs=1e-6)


def test_recall_counts_the_positives_that_are_nearer():
    rows = check_rows("texts", (["a", "b", "c"], ["d", "e", "f"]))
    # The positive of a is the nearest, that of b the second, that of c the third.
    vectors = unit([0, 1, 30, 70, 40, 170])
    scores = {"recall_at_1": pytest.approx(1 / 3), "recall_at_5": 1.0, "recall_at_10": 1.0}
    assert score_embeddings(rows, vectors) == scores


def test_equal_vectors_count_as_nearer():
    """A model that gives all texts the same vector finds nothing."""
    texts = ([f"a{i}" for i in range(12)], [f"b{i}" for i in range(12)])
    scores = score_embeddings(check_rows("texts", texts), np.ones([24, 4]))
    assert set(scores.values()) == {0.0}


def test_equal_texts_are_one_candidate_and_other_positives_of_an_anchor_do_not_count():
    rows = check_rows("texts", (["a", "b", "a"], ["d", "d", "e"]))
    # b is nearer to e (3 degrees) than to its positive d (4 degrees).
    vectors = unit([0, 1, 5, 1, 0, 2])
    assert score_embeddings(rows, vectors)["recall_at_1"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "pairs",
    [
        [("a", "b"), ("b", "a"), ("d", "e"), ("e", "d")],  # symmetric
        [("a", "b"), ("a", "d"), ("b", "a")],  # an anchor with two positives
        [("a", "b"), ("c", "b"), ("b", "a"), ("d", "e")],  # a positive of two anchors
        [("a", "a"), ("d", "e")],  # a pair of equal texts
    ],
)
def test_text_of_the_anchor_is_not_a_candidate(pairs):
    rows = check_rows("texts", tuple(map(list, zip(*pairs, strict=True))))
    degrees = {"a": 0, "b": 2, "c": 5, "d": 90, "e": 91}
    vectors = unit([degrees[text] for pair in pairs for text in pair])
    assert score_embeddings(rows, vectors)["recall_at_1"] == 1.0


def test_truncated_vectors_have_scores_of_their_own():
    rows = check_rows("texts", (["a", "b"], ["c", "d"]), [0.1, 0.9])
    vectors = np.array([[1, 0, 9], [1, 0, 9], [1, 0, 9], [0, 1, 9]], np.float32)
    scores = score_embeddings(rows, vectors, (3, 2))
    assert scores.keys() == {"spearman", "pearson", "spearman_2", "pearson_2"}
    assert scores["spearman_2"] == pytest.approx(-1.0)
