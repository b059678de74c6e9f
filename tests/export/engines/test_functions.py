"""The check notices every difference between an engine and the SavedModel."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.export.engine_network import (
    ATTRIBUTE,
    SIGNATURE,
    EngineNetwork,
    difference,
    different_answers,
    different_outputs,
)
from keras_bert.export.engines import NetworkSpec


class Saved:
    """The network of a SavedModel as an engine, whose outputs are multiplied by a factor."""

    def __init__(self, loaded, spec: NetworkSpec, factor: float = 1.0):
        self._network, self._factor = getattr(loaded, ATTRIBUTE).network, factor
        self._per = spec.per

    def __call__(self, inputs):
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
    """Returns a function: task -> (loaded SavedModel, its spec, its inputs)."""

    def open_export(task: str):
        folder = export_with_engines(task)
        info = json.loads((folder / "export.json").read_text())
        spec = NetworkSpec.from_json(info["engines"]["network"], "export.json")
        return tf.saved_model.load(str(folder)), spec, list(info["signatures"][SIGNATURE]["inputs"])

    return open_export


@pytest.mark.slow
@pytest.mark.parametrize("factors", [(1.01, 1.0), (1.0, 1.01)])
def test_both_networks_of_an_engine_are_compared(opened, factors):
    loaded, spec, names = opened("pair")
    # More groups at a time than the check has texts.
    network = EngineNetwork(spec, *(Saved(loaded, spec, factor) for factor in factors), 20)
    problem = difference(loaded, network, names, "float32", "float32")
    assert problem == "logits differs by 0.01; expected at most 0.001 in float32"


@pytest.mark.slow
def test_signature_that_is_not_that_of_the_functions_is_noticed(opened):
    loaded, spec, names = opened("pair")
    network = EngineNetwork(spec, Saved(loaded, spec), Saved(loaded, spec))
    signature = loaded.signatures[SIGNATURE]

    def changed(**inputs):
        answers = dict(signature(**inputs))
        return {**answers, "probabilities": answers["probabilities"] * 0.5}

    other = types.SimpleNamespace(**{ATTRIBUTE: getattr(loaded, ATTRIBUTE)})
    other.signatures = {SIGNATURE: changed}
    assert difference(other, network, names, "float32", "float32").startswith(
        "probabilities differs by "
    )
    other.signatures = {SIGNATURE: lambda **inputs: {"logits": signature(**inputs)["logits"]}}
    assert "the answers are " in difference(other, network, names, "float32", "float32")


@pytest.mark.slow
def test_an_engine_may_differ_from_a_bfloat16_export_as_much_as_bfloat16_does(opened):
    loaded, spec, names = opened("embedding")
    engine = Saved(loaded, spec, 1.05)
    network = EngineNetwork(spec, engine, engine)
    problem = difference(loaded, network, names, "float32", "float32")
    assert "expected at most 0.001 in float32" in problem
    assert difference(loaded, network, names, "float32", "bfloat16") is None


def test_texts_without_any_output_are_not_agreement():
    spec = NetworkSpec({"scores": "mask", "token_ids": "mask"}, 3, 4)
    outputs = [np.zeros([0, 3], np.float32), np.zeros([0, 3], np.int32)]
    message = different_outputs(spec, outputs, outputs, "float32")
    assert message.startswith("the network has no outputs for the texts of the check")


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
    assert different_outputs(spec, [found], [expected], "int8").startswith("logits differs by nan")
