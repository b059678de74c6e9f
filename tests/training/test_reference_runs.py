"""Checks 20 clipped updates with repeated token ids against float64 NumPy, on 1 and 2 devices."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.training.optimizers import (
    AdamWeightDecay,
    Lamb,
    clip_scale,
    densify,
    global_norm,
)
from keras_bert.training.step import _traced_once
from tests.training import reference

RULES = ("adamw", "adamw_corrected", "lamb")


def local_gradients(model, ids, targets):
    """Returns the gradient of one replica's share, divided by the global batch size."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(ids, training=True) - targets)) / reference.B
    return tape.gradient(loss, [v.value for v in model.trainable_variables])


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_one_device_equals_the_reference(rule, jit_compile):
    model, optimizer = reference.build(rule)

    @tf.function(jit_compile=jit_compile)
    def step(ids, targets):
        grads = local_gradients(model, ids, targets)
        assert isinstance(grads[0], tf.IndexedSlices)  # repeated ids give sparse gradients
        optimizer.apply(reference.clipped(grads))

    for ids, targets in reference.batches():
        step(ids, targets)
    assert reference.distance(model.get_weights(), reference.train(rule)) < 1e-6


def split(strategy, array):
    """Splits the batch over the replicas."""
    parts = np.split(array, strategy.num_replicas_in_sync)
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [AdamWeightDecay, Lamb])
def test_shared_traces_give_the_same_bits(kind, state_dtype):
    """Two variables of one shape have different learning rates, and two have no weight decay."""
    found, traces = {}, []

    def counting(function):
        def counted(*values):
            traces.append(function)
            return function(*values)

        return _traced_once(counted)

    for shared in (False, True):
        keras.utils.set_random_seed(1)
        variables = []
        for path in ("a/kernel", "b/kernel", "a/bias", "b/bias"):
            start = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)
            variables.append(keras.Variable(start, name=path[2:]))
            variables[-1]._path = path
        optimizer = kind(0.1, learning_rate_multipliers=[("^b/", 0.5)], state_dtype=state_dtype)
        optimizer.build(variables)

        @tf.function(jit_compile=True, autograph=False)
        def update(gradients):
            with optimizer.sharing_traces(counting) if shared else contextlib.nullcontext():  # noqa: B023
                for gradient, variable in zip(gradients, variables, strict=True):  # noqa: B023
                    optimizer.update_step(gradient, variable, optimizer.learning_rate)  # noqa: B023

        for step in range(3):
            update([tf.random.stateless_normal([3, 4], [step, i]) for i in range(4)])
            optimizer.iterations.assign_add(1)
        found[shared] = [value.numpy() for value in (*variables, *optimizer.variables)]
    assert len(traces) == 2  # With and without weight decay.
    for one, two in zip(found[False], found[True], strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(found[True][0], found[True][1])  # The rates differ.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "way"),
    [
        ("adamw", "keras_apply"),
        ("adamw_corrected", "update_step_jit_shared"),
        ("lamb", "update_step_jit_shared"),
    ],
)
def test_two_devices_equal_the_reference(rule, way, mirrored):
    """Tests both kinds of update under a strategy: Keras's apply, and update_step per replica."""
    strategy = mirrored
    with strategy.scope():
        model, optimizer = reference.build(rule)

    shares = way.endswith("_shared")

    @tf.function(jit_compile="jit" in way)
    def update(grads, scale):
        rate = optimizer.learning_rate
        with optimizer.sharing_traces(_traced_once) if shares else contextlib.nullcontext():
            for gradient, variable in zip(grads, model.trainable_variables, strict=True):
                optimizer.update_step(gradient * scale, variable, rate)
        return rate

    def replica(ids, targets):
        grads = [densify(g) for g in local_gradients(model, ids, targets)]
        grads = tf.distribute.get_replica_context().all_reduce("SUM", grads)
        if way == "keras_apply":  # apply sums over the replicas again
            grads = reference.clipped(grads)
            optimizer.apply([g / strategy.num_replicas_in_sync for g in grads])
        else:
            done = update(grads, clip_scale(global_norm(grads)))
            with tf.control_dependencies([done]):
                optimizer.iterations.assign_add(1)

    @tf.function
    def step(ids, targets):
        strategy.run(replica, args=(ids, targets))

    for ids, targets in reference.batches():
        step(split(strategy, ids), split(strategy, targets))
    assert reference.distance(model.get_weights(), reference.train(rule)) < 1e-6
    for variable in model.trainable_variables + optimizer.variables:
        first, second = strategy.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first.numpy(), second.numpy(), err_msg=variable.path)
