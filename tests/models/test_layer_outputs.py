"""`BertEncoder.layer_outputs`: hidden states and attention probabilities of every layer."""

import keras
import numpy as np
import pytest

from keras_bert.config import BertConfig
from keras_bert.models import BertEncoder
from keras_bert.models.attention import attend_with

CONFIG = BertConfig(20, 8, 3, 2, 12, max_position_embeddings=6, initializer_range=0.4)
INPUTS = {
    "input_ids": np.array([[1, 5, 7, 9, 2], [3, 4, 6, 0, 0]], "int32"),
    "input_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], "int32"),
}


@pytest.fixture(scope="module")
def encoder():
    encoder = BertEncoder(CONFIG)
    random = np.random.default_rng(0)
    for variable in encoder.weights:
        if variable.name in ("bias", "gamma", "beta"):
            variable.assign(random.normal(size=variable.shape))
    return encoder


def test_probabilities_of_all_layers_equal_the_definition(encoder):
    """tests/tasks/test_features.py compares the hidden states with those of transformers."""
    outputs = encoder.layer_outputs(INPUTS)
    assert outputs.keys() == {"hidden_states", "attention_probabilities"}
    assert (len(outputs["hidden_states"]), len(outputs["attention_probabilities"])) == (4, 3)
    weights = {v.path.removeprefix("encoder/"): np.float64(v) for v in encoder.weights}

    def heads(x, path):
        x = x @ weights[f"{path}/kernel"] + weights[f"{path}/bias"]
        return x.reshape(2, 5, 2, 4).transpose(0, 2, 1, 3)

    for index, probabilities in enumerate(outputs["attention_probabilities"]):
        x = np.float64(outputs["hidden_states"][index])
        query, key = (heads(x, f"layer_{index}/attention/self/{kind}") for kind in ("query", "key"))
        scores = query @ key.transpose(0, 1, 3, 2) / 2.0
        scores = np.exp(scores - 1e4 * (1 - INPUTS["input_mask"])[:, None, None])
        np.testing.assert_allclose(probabilities, scores / scores.sum(-1, keepdims=True), atol=1e-5)


def test_probabilities_are_computed_without_fused_attention(encoder):
    calls = []

    def attend(heads, *_, **__):
        calls.append(len(heads))
        return heads[2]

    for attention_probabilities in (True, False):
        with attend_with(attend):
            encoder.layer_outputs(INPUTS, attention_probabilities=attention_probabilities)
        assert calls == [3, 3, 3]
        calls.clear()


def test_layer_outputs_work_in_a_functional_model(encoder):
    inputs = {name: keras.Input([None], dtype="int32", name=name) for name in INPUTS}
    model = keras.Model(inputs, encoder.layer_outputs(inputs))
    assert model.output["attention_probabilities"][0].shape == (None, 2, None, None)
    expected, outputs = encoder.layer_outputs(INPUTS), model(INPUTS)
    for name, values in expected.items():
        for ours, theirs in zip(outputs[name], values, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
