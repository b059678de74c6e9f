"""Functions of a SavedModel give the same results with and without TensorFlow's inner call."""

import types

import pytest
import tensorflow as tf

from keras_bert.serving.engines.saved_functions import SavedFunction, _flat_call


@pytest.fixture(scope="module")
def function(tmp_path_factory):
    module = tf.Module()
    module.scale = tf.Variable(2.0)
    specs = [tf.TensorSpec([None], tf.float32, name=name) for name in ("a", "b")]
    module.run = tf.function(lambda a, b: {"sum": a * module.scale + b}, input_signature=specs)
    folder = str(tmp_path_factory.mktemp("saved"))
    tf.saved_model.save(module, folder)
    return tf.saved_model.load(folder)


def test_installed_tensorflow_has_the_expected_method(function):
    assert SavedFunction(function.run)._call_flat is not None


@pytest.mark.parametrize("is_flat", [True, False])
def test_both_calls_give_the_same_result(function, is_flat):
    saved = SavedFunction(function.run)
    if not is_flat:
        saved._call_flat = None
    assert saved.input_names == ["a", "b"]
    assert saved(tf.constant([1.0]), tf.constant([3.0]))["sum"].numpy() == [5.0]


@pytest.mark.parametrize(
    "concrete",
    [
        types.SimpleNamespace(),
        types.SimpleNamespace(_call_flat=1),
        types.SimpleNamespace(_call_flat=lambda tensor_inputs: None),
        types.SimpleNamespace(_call_flat=lambda captured_inputs, tensor_inputs: None),
        types.SimpleNamespace(_call_flat=lambda tensor_inputs, captured_inputs, more: None),
    ],
)
def test_method_of_another_form_is_not_used(concrete):
    assert _flat_call(concrete) is None
