"""20 clipped updates with repeated token ids equal float64 numpy, on one device and on two."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.optimization.clipping import clip_scale, global_norm
from keras_bert.optimization.dense import densify

RULES = ("adamw", "adamw_corrected", "lamb")


def local_gradients(reference, model, ids, targets):
    """The gradient of one replica's part of the batch, divided by the global batch size."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(ids, training=True) - targets)) / reference.B
    return tape.gradient(loss, [v.value for v in model.trainable_variables])


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_one_device(reference, rule, jit_compile):
    model, optimizer = reference.build(rule)

    @tf.function(jit_compile=jit_compile)
    def step(ids, targets):
        grads = local_gradients(reference, model, ids, targets)
        assert isinstance(grads[0], tf.IndexedSlices)  # what the fact is about
        optimizer.apply(reference.clipped(grads))

    for ids, targets in reference.batches():
        step(ids, targets)
    assert reference.distance(model.get_weights(), reference.train(rule)) < 1e-6


def split(strategy, array):
    """Gives each replica its share of the batch."""
    parts = np.split(array, strategy.num_replicas_in_sync)
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(parts[context.replica_id_in_sync_group])
    )


@pytest.mark.parametrize("way", ["keras_apply", "update_step", "update_step_jit"])
@pytest.mark.parametrize("rule", RULES)
def test_two_devices(reference, rule, way, mirrored):
    """Both ways to update under a strategy: Keras's apply, and update_step on each replica."""
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
        if way == "keras_apply":  # it sums over the replicas once more
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
