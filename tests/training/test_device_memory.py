"""Releasing the memory of TensorFlow's devices."""

import keras
import numpy as np
import tensorflow as tf

from keras_bert.training.device_memory import free


def test_freed_variables_hold_no_memory(mirrored):
    with mirrored.scope():
        variable = keras.Variable(np.ones([3, 4], np.float32))
    free([variable])
    for copy in variable.value.values:
        assert tf.size(tf.raw_ops.ReadVariableOp(resource=copy.handle, dtype=tf.float32)) == 0
