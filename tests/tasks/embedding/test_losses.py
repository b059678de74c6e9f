"""Tests that the losses of embeddings equal those of sentence-transformers, and their masks.

The reference values are made by tests/golden/make_embedding_losses_golden.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.tasks.embedding.losses import EmbeddingLoss

SIZES = (8, 4, 2)
CASES = {
    "mnrl_pairs": EmbeddingLoss("mnrl"),
    "mnrl_triplets": EmbeddingLoss("mnrl", columns=3),
    "cosine": EmbeddingLoss("cosine"),
    "cosent": EmbeddingLoss("cosent"),
    "matryoshka_mnrl": EmbeddingLoss("mnrl", columns=3, sizes=SIZES),
    "matryoshka_cosent": EmbeddingLoss("cosent", sizes=SIZES),
}


@pytest.fixture(scope="module")
def golden(root):
    return np.load(root / "tests" / "golden" / "embedding_losses.npz")


def value_and_gradient(loss, vectors, scores, ids=None, weights=None):
    """Returns the loss of vectors [B, k, H], and its gradient [B, k, H]."""
    count, columns, width = vectors.shape
    rows = tf.constant(vectors.reshape(-1, width))
    ids = np.arange(count * columns) if ids is None else np.ravel(ids)
    weights = np.repeat(np.ones(count) if weights is None else weights, columns)
    scores, weights = (np.asarray(x, np.float32) for x in (np.repeat(scores, columns), weights))
    with tf.GradientTape() as tape:
        tape.watch(rows)
        value = loss.total(rows, scores, np.asarray(ids, np.int32), weights) / loss.weight(weights)
    return value.numpy(), tape.gradient(value, rows).numpy().reshape(vectors.shape)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_those_of_sentence_transformers(name, golden):
    loss = CASES[name]
    vectors, scores = golden["vectors"][:, : loss.columns], golden["scores"]
    value, gradient = value_and_gradient(loss, vectors, scores)
    np.testing.assert_allclose(value, golden[f"{name}_loss"], rtol=1e-5)
    np.testing.assert_allclose(gradient, golden[f"{name}_gradient"], rtol=1e-5, atol=1e-5)
    # Rows that fill a batch change nothing.
    expected, gradient = value_and_gradient(loss, vectors[:4], scores[:4])
    filled, more = value_and_gradient(loss, vectors, scores, weights=[1, 1, 1, 1, 0, 0])
    assert filled == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(more[:4], gradient, atol=1e-6)
    assert not more[4:].any()


@pytest.mark.parametrize(
    "ids",
    [
        [[0, 1, 2], [3, 1, 4], [5, 6, 7], [8, 9, 10]],  # example 1 has the positive of example 0
        [[0, 1, 2], [3, 0, 4], [5, 6, 7], [8, 9, 10]],  # its positive is the anchor of example 0
        [[0, 1, 2], [0, 3, 4], [5, 6, 7], [8, 9, 10]],  # it has the anchor of example 0
        # Its positive is that of example 2, which has the anchor of example 0.
        [[0, 1, 2], [3, 4, 5], [0, 4, 6], [8, 9, 10]],
    ],
)
def test_duplicates_are_not_negatives(ids, golden):
    """The positive of example 1 is not a negative of anchor 0, which therefore does not push it."""
    vectors = golden["vectors"][:4]
    moved = vectors.copy()
    moved[0, 0] = -moved[0, 0]  # another anchor 0
    loss = EmbeddingLoss("mnrl", 1.0, columns=3)

    def of_positive(vectors, ids):
        return value_and_gradient(loss, vectors, np.zeros(4), ids)[1][1, 1]

    different = np.arange(12).reshape(4, 3)
    assert np.abs(of_positive(vectors, different) - of_positive(moved, different)).max() > 1e-3
    np.testing.assert_allclose(of_positive(vectors, ids), of_positive(moved, ids), atol=1e-6)


def test_zero_vectors_have_finite_gradients(golden):
    for loss in (EmbeddingLoss("mnrl"), EmbeddingLoss("cosine"), EmbeddingLoss("cosent")):
        value, gradient = value_and_gradient(loss, golden["vectors"][:, :2] * 0, golden["scores"])
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_losses_with_equal_attributes_are_equal():
    assert EmbeddingLoss("mnrl", sizes=[4, 2]) == EmbeddingLoss("mnrl", sizes=(4, 2))
    assert EmbeddingLoss("mnrl") != EmbeddingLoss("mnrl", scale=10.0)
