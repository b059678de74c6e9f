"""Batches on one device; test_multi_worker.py has those on several workers."""

import tensorflow as tf

from keras_bert.training.distribute import distribute


def test_a_pipeline_is_not_tuned_as_its_end_would_wait_for_that():
    batches = distribute(tf.distribute.get_strategy(), tf.data.Dataset.range(3))
    assert batches.options().autotune.enabled is False
    assert [int(batch) for batch in batches] == [0, 1, 2]
