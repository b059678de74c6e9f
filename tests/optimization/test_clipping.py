"""clip_by_global_norm: one norm over everything, and nothing non-finite hidden."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.optimization.clipping import clip_by_global_norm


def test_joint_norm_becomes_one():
    clipped, norm = clip_by_global_norm([tf.constant([3.0, 0.0]), tf.constant([[4.0]])], 1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose(clipped[0], [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], [[0.8]], rtol=1e-6)


def test_smaller_gradients_pass_bit_for_bit():
    gradient = tf.random.normal([50]) * 0.01
    clipped, norm = clip_by_global_norm([gradient, None], 1.0)
    assert float(norm) < 1.0
    np.testing.assert_array_equal(clipped[0], gradient)
    assert clipped[1] is None


def test_zero_gradients_stay_zero():
    clipped, norm = clip_by_global_norm([tf.zeros([3])])
    assert float(norm) == 0.0
    np.testing.assert_array_equal(clipped[0], [0.0, 0.0, 0.0])


def test_repeated_rows_count_as_their_sum():
    """Rows 1 and 2 of one id make 3; their raw squares would give a norm of sqrt(5)."""
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([4, 4]), tf.constant([6, 1]))
    clipped, norm = clip_by_global_norm([slices], 1.5)
    assert float(norm) == 3.0
    np.testing.assert_allclose(clipped[0][4], [1.5])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_non_finite_norm_stays_visible(bad, jit_compile):
    """1e30 is finite but its square is not."""
    gradients = [tf.constant([1.0, bad]), tf.constant([1.0])]
    clipped, norm = tf.function(clip_by_global_norm, jit_compile=jit_compile)(gradients)
    assert not np.isfinite(norm)
    assert all(np.isnan(g.numpy()).all() for g in clipped)


def test_low_precision_keeps_its_type_and_a_float32_norm():
    clipped, norm = clip_by_global_norm([tf.fill([1000], tf.constant(2.0, tf.bfloat16))])
    assert clipped[0].dtype == tf.bfloat16
    assert norm.dtype == tf.float32
    np.testing.assert_allclose(float(norm), np.sqrt(4000.0), rtol=1e-6)


def test_bad_max_norm_is_quoted():
    with pytest.raises(InputError, match="max_norm must be above 0, got 0"):
        clip_by_global_norm([tf.ones([1])], 0)
