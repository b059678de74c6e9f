"""Clipping by the global norm: one norm over all gradients; non-finite norms stay visible."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.optimization.clipping import clip_scale, global_norm


def test_norm_is_computed_over_all_gradients():
    assert float(global_norm([tf.constant([3.0, 0.0]), None, tf.constant([[4.0]])])) == 5.0


def test_larger_norm_is_scaled_down():
    assert float(clip_scale(tf.constant(5.0), 1.0)) == pytest.approx(0.2, rel=1e-6)


@pytest.mark.parametrize("norm", [0.0, 0.3, 1.0])
def test_smaller_gradients_are_unchanged(norm):
    assert float(clip_scale(tf.constant(norm), 1.0)) == 1.0


def test_repeated_rows_are_summed_before_the_norm():
    """The values 1 and 2 of one row sum to 3; squaring them separately would give sqrt(5)."""
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([4, 4]), tf.constant([6, 1]))
    assert float(global_norm([slices])) == 3.0


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_non_finite_norm_is_not_hidden(bad, jit_compile):
    """The value 1e30 is finite, but its square is not."""

    @tf.function(jit_compile=jit_compile)
    def scale_of(*gradients):
        norm = global_norm(gradients)
        return norm, clip_scale(norm)

    norm, scale = scale_of(tf.constant([1.0, bad]), tf.constant([1.0]))
    assert not np.isfinite(norm)
    assert np.isnan(scale)


def test_norm_of_low_precision_gradients_is_float32():
    norm = global_norm([tf.fill([1000], tf.constant(2.0, tf.bfloat16))])
    assert norm.dtype == tf.float32
    np.testing.assert_allclose(float(norm), np.sqrt(4000.0), rtol=1e-6)


def test_invalid_max_norm_is_quoted_in_the_error():
    with pytest.raises(InputError, match="max_norm must be above 0, got 0"):
        clip_scale(tf.constant(1.0), 0)
