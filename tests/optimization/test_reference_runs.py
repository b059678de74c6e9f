"""Checks 20 clipped updates with repeated token ids against float64 NumPy, on 1 and 2 devices."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.optimization.clipping import clip_scale, global_norm
from keras_bert.optimization.dense import densify

RULES = ("adamw", "adamw_corrected", "lamb")


def local_gradients(reference, model, ids, targets):
    """Returns the gradient of one replica's share, divided by the global batch size."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(ids, training=True) - targets)) / reference.B
    return tape.gradient(loss, [v.value for v in model.trainable_variables])


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_one_device_equals_the_reference(reference, rule, jit_compile):
    model, optimizer = reference.build(rule)

    @tf.function(jit_compile=jit_compile)
    def step(ids, targets):
        grads = local_gradients(reference, model, ids, targets)
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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["keras_apply", "update_step", "update_step_jit"])
@pytest.mark.parametrize("rule", RULES)
def test_two_devices_equal_the_reference(reference, rule, way, mirrored):
    """Tests both kinds of update under a strategy: Keras's apply, and update_step per replica."""
    strategy = mirrored
    with strategy.scope():
        model, optimizer = reference.build(rule)

    @tf.function(jit_compile=way == "update_step_jit")
    def update(grads, scale):
        rate = optimizer.learning_rate
        for gradient, variable in zip(grads, model.trainable_variables, strict=True):
            optimizer.update_step(gradient * scale, variable, rate)
        return rate

    def replica(ids, targets):
        grads = [densify(g) for g in local_gradients(reference, model, ids, targets)]
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
