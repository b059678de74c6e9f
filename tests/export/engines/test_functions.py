"""The check notices every difference between an engine and the SavedModel."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.export import engine_functions as functions
from keras_bert.export.engine_functions import (
    ATTRIBUTE,
    SIGNATURE,
    Check,
    SavedFunction,
    _flat_call,
    difference,
    different_answers,
    different_outputs,
    example_inputs,
)
from keras_bert.export.engine_network import CompiledNetwork, EngineNetwork, Rows
from keras_bert.export.engines import NetworkSpec


class Saved(CompiledNetwork):
    """The network of a SavedModel as an engine, whose outputs are multiplied by a factor."""

    def __init__(self, loaded, spec: NetworkSpec, parallel: int = 1, factor: float = 1.0):
        self.parallel, self.calls = parallel, 0
        self._network, self._factor = getattr(loaded, ATTRIBUTE).network, factor
        self._per = spec.per

    def run(self, inputs):
        self.calls += 1
        mask = inputs["input_mask"] > 0
        splits = np.concatenate([[0], np.cumsum(mask.sum(1))]).astype(np.int64)
        tokens = (inputs[name][mask] for name in ("input_ids", "segment_ids"))
        outputs = {}
        for name, tensor in self._network(*map(tf.constant, (*tokens, splits))).items():
            values = tensor.numpy() * (self._factor if tensor.dtype.is_floating else 1)
            outputs[name] = values
            if self._per[name] == "token":
                outputs[name] = np.zeros([*mask.shape, *values.shape[1:]], values.dtype)
                outputs[name][mask] = values
        return outputs


@pytest.fixture(scope="module")
def opened(export_with_engines):
    """Returns a function: task -> (loaded SavedModel, its spec, the check in float32)."""

    def open_export(task: str):
        folder = export_with_engines(task)
        info = json.loads((folder / "export.json").read_text())
        spec = NetworkSpec.from_json(info["engines"]["network"], "export.json")
        check = Check(list(info["signatures"][SIGNATURE]["inputs"]), "float32", "float32")
        return tf.saved_model.load(str(folder)), spec, check

    return open_export


@pytest.mark.slow
@pytest.mark.parametrize("task", ["pair", "question_answering", "ner", "fill_mask", "embedding"])
def test_the_network_of_the_saved_model_passes(opened, task):
    loaded, spec, check = opened(task)
    single, several = Saved(loaded, spec), Saved(loaded, spec, 3)
    assert difference(loaded, EngineNetwork(single, several, spec), check) is None
    assert single.calls
    assert several.calls


@pytest.mark.slow
@pytest.mark.parametrize("factors", [(1.01, 1.0), (1.0, 1.01)])
def test_both_networks_of_an_engine_are_compared(opened, factors):
    loaded, spec, check = opened("pair")
    # More groups at a time than the check has texts.
    networks = Saved(loaded, spec, 1, factors[0]), Saved(loaded, spec, 20, factors[1])
    found = difference(loaded, EngineNetwork(*networks, spec), check)
    assert found == "logits differs by 0.01; expected at most 0.001 in float32"


@pytest.mark.slow
def test_signature_that_is_not_that_of_the_functions_is_noticed(opened):
    loaded, spec, check = opened("pair")
    network = EngineNetwork(Saved(loaded, spec), Saved(loaded, spec), spec)
    signature = loaded.signatures[SIGNATURE]

    def changed(**inputs):
        answers = dict(signature(**inputs))
        return {**answers, "probabilities": answers["probabilities"] * 0.5}

    other = types.SimpleNamespace(**{ATTRIBUTE: getattr(loaded, ATTRIBUTE)})
    other.signatures = {SIGNATURE: changed}
    assert difference(other, network, check).startswith("probabilities differs by ")
    other.signatures = {SIGNATURE: lambda **inputs: {"logits": signature(**inputs)["logits"]}}
    assert "the answers are " in difference(other, network, check)


@pytest.mark.slow
def test_an_engine_may_differ_from_a_bfloat16_export_as_much_as_bfloat16_does(opened):
    loaded, spec, check = opened("embedding")
    engine = Saved(loaded, spec, 1, 1.05)
    network = EngineNetwork(engine, engine, spec)
    assert "expected at most 0.001 in float32" in difference(loaded, network, check)
    assert difference(loaded, network, check._replace(compute_type="bfloat16")) is None
    assert check._replace(precision="int8", compute_type="bfloat16").lower == "int8"


def test_texts_without_any_output_are_not_agreement():
    spec = NetworkSpec({"scores": "mask", "token_ids": "mask"}, 3, 4)
    outputs = [np.zeros([0, 3], np.float32), np.zeros([0, 3], np.int32)]
    check = Check(["text"], "float32", "float32")
    message = different_outputs(spec, outputs, outputs, check)
    assert message.startswith("the network has no outputs for the texts of the check")


def test_the_mask_of_the_check_is_a_first_token():
    [texts] = example_inputs(["text"]).values()
    assert texts.numpy()[0].startswith(b"[MASK]")


def test_different_strings_types_and_shapes_are_noticed():
    found, expected = ({"label": tf.constant([b"a", label])} for label in (b"a", b"b"))
    message = different_answers(found, expected, "float32")
    assert message == "50% of label are equal; expected at least 100% in float32"
    assert different_answers(found, found, "float32") is None
    message = different_answers({"label": tf.constant([1, 2])}, expected, "float32")
    assert message == "label has the type int32; expected string"
    message = different_answers({"label": tf.constant([b"a"])}, expected, "float32")
    assert message == "label has the shape (1,); expected (2,)"


def test_not_a_number_is_a_difference():
    spec = NetworkSpec({"logits": "row"})
    found, expected = np.array([np.nan, 1], np.float32), np.array([1, 1], np.float32)
    check = Check(["text"], "int8", "float32")
    assert different_outputs(spec, [found], [expected], check).startswith("logits differs by nan")


def test_repeated_rows():
    rows = Rows(np.array([5, 6, 7]), np.array([0, 1, 1]), np.array([0, 1, 3]))
    repeated = functions._repeated(rows, 2)
    np.testing.assert_array_equal(repeated.splits, [0, 1, 3, 4, 6])
    np.testing.assert_array_equal(repeated.input_ids, [5, 6, 7] * 2)


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
