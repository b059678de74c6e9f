"""Tests that `fit` initializes weights that no checkpoint contains from its seed."""

import keras
import numpy as np
import pytest

from keras_bert.checkpoints.weights import weights_of
from keras_bert.tasks.classification.text_classifier import TextClassifier
from keras_bert.tasks.fitting import reinitialize


@pytest.fixture
def model(pretrained):
    return TextClassifier.from_pretrained(pretrained, labels=["a", "b"]).model


def head_of(model):
    return {path: value for path, value in weights_of(model).items() if "classifier" in path}


def test_new_kernels_depend_only_on_the_seed(model):
    found = []
    for seed in (0, 0, 1):
        reinitialize(model, head_of(model), seed)
        found.append(head_of(model))
    assert np.array_equal(found[0]["classifier/kernel"], found[1]["classifier/kernel"])
    assert not np.array_equal(found[0]["classifier/kernel"], found[2]["classifier/kernel"])
    assert {value.tobytes() for values in found for value in [values["classifier/bias"]]} == {
        np.zeros([2], np.float32).tobytes()
    }
    # The distribution of the model's initializer: a truncated normal with 0.2.
    assert 0.05 < found[0]["classifier/kernel"].std() < 0.25


def test_weights_that_were_set_after_initialization_are_kept(model):
    initial_values = head_of(model)
    kernel = model.classifier.kernel
    kernel.assign(np.full(kernel.shape, 0.25))
    reinitialize(model, initial_values, 0)
    assert (keras.ops.convert_to_numpy(kernel) == 0.25).all()
