"""Errors that end a run report the checkpoint to resume from."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.optimization.optimizers import AdamWeightDecay
from keras_bert.training import checkpoint
from keras_bert.training.checkpoint import CheckpointWriter
from keras_bert.training.consistency_checks import check_weights, stop_if_not_finite
from keras_bert.training.objective import Objective, StepMetrics

TASK = Objective(("nll",), {"nll": 0.0}, lambda batch: {}, lambda model, batch, training: {})


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="dense")], name="m")


def metrics(losses, norms):
    ones = np.ones(len(losses))
    sums, weights = np.array([losses]).T, ones[:, np.newaxis]
    return StepMetrics(sums, weights, 8 * ones, 8 * ones, ones, np.array(norms), 1e-4 * ones)


def test_error_waits_for_the_pending_checkpoint_and_names_it(tmp_path, monkeypatch, model):
    may_write, write = threading.Event(), checkpoint.save_file

    def slow(values, path):
        assert may_write.wait(10)
        write(values, path)

    monkeypatch.setattr(checkpoint, "save_file", slow)
    optimizer = AdamWeightDecay(0.1)
    optimizer.build(model.trainable_variables)
    writer = CheckpointWriter(tmp_path)
    writer.save(4, model, optimizer)
    threading.Timer(0.2, may_write.set).start()
    message = r"step 7: the loss is nan and .* 2.0; .* last good checkpoint: .*/step-00000004;"
    with pytest.raises(InputError, match=message):
        stop_if_not_finite(metrics([1.0, np.nan], [1.0, 2.0]), 5, TASK, writer)


def test_weight_that_is_not_finite_is_named(tmp_path, model):
    writer, one = CheckpointWriter(tmp_path), tf.distribute.get_strategy()
    check_weights(one, model, 3, writer)
    model.trainable_variables[1].assign([0.0, np.inf, 0.0])
    with pytest.raises(InputError, match="step 3: m/dense/bias has a weight that is not finite"):
        check_weights(one, model, 3, writer)
