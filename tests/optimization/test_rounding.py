"""Stochastic rounding to bfloat16, and optimizer state that is stored with it."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bert.common.errors import InputError
from keras_bert.common.random_bits import site_key
from keras_bert.optimization.adamw import AdamWeightDecay
from keras_bert.optimization.rounding import round_stochastically

ULP = 2.0**-7  # unit in the last place of bfloat16 between 1 and 2


def rounded(values, step=0):
    key = site_key(ops.convert_to_tensor([step], "int32"), 0)
    found = round_stochastically(ops.convert_to_tensor(values, "float32"), key)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    return ops.convert_to_numpy(ops.cast(found, "float32"))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("share", [0.125, 0.5, 0.75])
def test_value_rounds_to_its_two_neighbours_with_the_right_mean(share, sign):
    found = rounded(np.full([100, 200], sign * (1.0 + share * ULP), "float32"))
    assert set(np.unique(found)) == {sign, sign * (1.0 + ULP)}
    bound = 4.8 * np.sqrt(share * (1 - share) / found.size)  # fails by chance once in a million
    assert abs((np.abs(found) > 1.0).mean() - share) < bound


def test_values_representable_in_bfloat16_are_unchanged():
    values = np.array([0.0, -0.0, 1.0, -1.0 - ULP, 3e38, 1e-38, np.inf, -np.inf, np.nan])
    values = values.astype(ml_dtypes.bfloat16).astype("float32")
    assert rounded(values).tobytes() == values.tobytes()


def test_rounding_depends_only_on_the_key():
    values = np.full([1000], 1.0 + ULP / 2, "float32")
    assert np.array_equal(rounded(values, 5), rounded(values, 5))
    assert 0.4 < (rounded(values, 5) == rounded(values, 6)).mean() < 0.6


def test_state_is_bfloat16_and_weights_are_float32():
    weight = keras.Variable(np.ones([3], "float32"), name="kernel")
    optimizer = AdamWeightDecay(1e-3, state_dtype="bfloat16")
    optimizer.apply([np.ones(3, "float32")], [weight])
    dtypes = {v.path.rsplit("_", 1)[-1]: v.dtype for v in optimizer.variables}
    assert (dtypes["m"], dtypes["v"], weight.dtype) == ("bfloat16", "bfloat16", "float32")
    assert optimizer.get_config()["state_dtype"] == "bfloat16"


@pytest.mark.slow
def test_second_moment_decays_although_each_step_is_below_its_last_bit():
    """A share of 0.999^700 = 0.4964 remains; rounding to nearest would keep all of it."""
    weight = keras.Variable(np.ones([4000], "float32"), name="kernel")
    optimizer = AdamWeightDecay(1e-3, state_dtype="bfloat16")
    optimizer.build([weight])
    velocity = optimizer.variables[-1]
    velocity.assign(np.ones([4000]))

    @tf.function(jit_compile=True)
    def idle():
        for _ in tf.range(700):
            optimizer.update_step(tf.zeros([4000]), weight, 0.0)
            optimizer.iterations.assign_add(1)

    idle()
    left = ops.convert_to_numpy(ops.cast(velocity, "float32"))
    assert left.mean() == pytest.approx(0.4964, rel=0.01)
    assert left.std() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["adamw", "lamb"])
def test_training_stays_close_to_that_with_float32_state(reference, rule):
    model, optimizer = reference.build(rule, state_dtype="bfloat16")
    for ids, targets in reference.batches():
        found = reference.gradients(model.get_weights(), ids, targets)
        optimizer.apply(reference.clipped([np.asarray(g, "float32") for g in found]))
    moved = reference.distance(reference.train(rule), reference.start())
    assert reference.distance(model.get_weights(), reference.train(rule)) < 0.01 * moved


def test_unknown_state_dtype_is_rejected():
    with pytest.raises(InputError, match="state_dtype must be one of float32, bfloat16, got 'int"):
        AdamWeightDecay(1e-3, state_dtype="int8")
