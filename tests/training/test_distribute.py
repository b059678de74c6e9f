"""Distributing batches on one device; test_multi_worker.py covers several workers."""

import tensorflow as tf

from keras_bert.training.distribute import distribute


def test_autotune_is_disabled_to_avoid_a_wait_at_the_end():
    batches = distribute(tf.distribute.get_strategy(), tf.data.Dataset.range(3))
    assert batches.options().autotune.enabled is False
    assert [int(batch) for batch in batches] == [0, 1, 2]
