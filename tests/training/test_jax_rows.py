"""The gradient of the word embeddings on JAX: sums of the rows of each token, in a fixed order."""

import numpy as np
import pytest


@pytest.mark.parametrize(
    "ids",
    [
        np.random.default_rng(0).zipf(1.3, (5, 80)) % 50,  # Frequencies like those of words.
        np.full((3, 130), 7),  # One token fills several of the chunks that are added at once.
        np.repeat([3, 0, 49], [129, 127, 200]),
        np.array([[49]]),
    ],
    ids=["words", "one_token", "long_runs", "single"],
)
def test_rows_of_equal_ids_are_added(ids):
    jnp = pytest.importorskip("jax", reason="jax is not installed").numpy
    from keras_bert.training.jax_step import sum_by_id

    rows = np.random.default_rng(1).normal(size=(*ids.shape, 3)).astype(np.float32)
    expected = np.zeros((50, 3))
    np.add.at(expected, ids, rows)
    sums = sum_by_id(jnp.asarray(ids, "int32"), jnp.asarray(rows), 50)
    np.testing.assert_allclose(sums, expected, atol=1e-5)
