"""The left-to-right model (Devlin et al. 2019, section 5.1): no token attends to later tokens.

tests/golden/make_left_to_right_golden.py makes the golden outputs with transformers' causal
BERT. Tolerances: float32, 1e-5.
"""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from keras_bert.checkpoints.hugging_face import (
    HuggingFaceWeights,
    open_model_directory,
    save_model_directory,
)
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.batches import next_tokens
from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.training.step import compiled

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ROW = ("input_ids", "input_mask", "segment_ids")


@pytest.fixture(scope="module")
def golden():
    batch = np.load(GOLDEN / "model_gelu.npz")
    return dict(np.load(GOLDEN / "left_to_right.npz")) | {name: batch[name] for name in ROW}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Opens the golden weights as a pre-trainer, from files as transformers saves a causal BERT."""
    folder = tmp_path_factory.mktemp("golden")
    weights = dict(np.load(GOLDEN / "model_weights.npz"))
    settings = json.loads(str(weights.pop("config"))) | {"hidden_act": "gelu", "is_decoder": True}
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    opened = open_model_directory(folder)
    model = BertPretrainer(opened.config)
    opened.load_into(model)
    return model


def inputs_of(golden, **changes):
    return {name: tf.constant(value) for name, value in golden.items() if name in ROW} | changes


def packed_of(golden):
    """Returns the second and the third example, of 9 and 5 tokens, in one row."""
    rows = [(1, 9), (2, 5)]
    packed = {
        name: np.concatenate([golden[name][row, :length] for row, length in rows])[None]
        for name in ROW
    }
    packed["position_ids"] = np.concatenate([np.arange(length) for _, length in rows])[None]
    packed["example_ids"] = np.repeat([1, 2], [9, 5])[None]
    return {name: value.astype(np.int32) for name, value in packed.items()}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "XLA on chains"])
def test_outputs_equal_transformers(model, golden, how):
    @functools.partial(compiled, jit_compile=how != "plain")
    def forward(inputs):
        return {**model.encoder(inputs), **model(inputs)}

    any_size = {name: tf.TensorSpec([None, None], tf.int32) for name in ROW}
    outputs = forward.get_concrete_function(any_size)(inputs_of(golden))
    assert outputs.keys() == {"sequence_output", "pooled_output", "next_token_logits"}
    for name, theirs in (("sequence_output",) * 2, ("next_token_logits",) * 2):
        assert outputs[name].dtype == tf.float32
        np.testing.assert_allclose(outputs[name], golden[theirs], atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_task_loss_and_all_gradients_equal_transformers(model, golden):
    task = PretrainingObjective("ltr")
    trained = [v for v in model.trainable_variables if v.path.startswith(("encoder/e", "masked"))]
    trained += [v for v in model.trainable_variables if v.path.startswith("encoder/layer")]

    @tf.function
    def backward(batch):
        with tf.GradientTape() as tape:
            sums, weights = task.sums(model, batch, False), task.weights(batch)
            loss = sums["next_token_loss"] / (weights["next_token_loss"] + 1e-5)
        gradients = tape.gradient(loss, [variable.value for variable in trained])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    loss, gradients = backward(next_tokens(inputs_of(golden)))
    assert float(loss) == pytest.approx(float(golden["loss"]), abs=1e-5)
    assert len(gradients) == 42  # The pooler and the next-sentence head have no gradient.
    for variable, gradient in zip(trained, gradients, strict=True):
        theirs = golden[f"gradient/{HuggingFaceWeights.name(variable.path)}"]
        theirs = theirs.T if variable.path.endswith("/kernel") else theirs
        np.testing.assert_allclose(gradient, theirs, atol=1e-5, err_msg=variable.path)


@pytest.mark.parametrize(
    ("row", "changed", "last"),
    [("plain", 3, 13), ("plain", 11, 13), ("packed", 3, 8), ("packed", 11, 13)],
)
def test_later_token_changes_no_earlier_hidden_state(model, golden, row, changed, last):
    inputs = inputs_of(golden) if row == "plain" else packed_of(golden)
    ids = np.array(inputs["input_ids"])
    ids[0, changed] = (ids[0, changed] + 7) % 61
    before, after = (
        model.encoder({**inputs, "input_ids": tf.constant(given)})["sequence_output"][0].numpy()
        for given in (inputs["input_ids"], ids)
    )
    sees = [*range(changed, last + 1)]  # The token itself and the rest of its example.
    assert np.array_equal(np.delete(after, sees, axis=0), np.delete(before, sees, axis=0))
    assert np.abs(after - before)[sees].max(axis=-1).min() > 1e-3


def test_example_in_a_packed_row_equals_the_example_alone(model, golden):
    packed = packed_of(golden)
    logits = model(packed)["next_token_logits"].numpy()
    np.testing.assert_allclose(logits[0, :9], golden["next_token_logits"][1, :9], atol=1e-5)
    np.testing.assert_allclose(logits[0, 9:], golden["next_token_logits"][2, :5], atol=1e-5)


def test_last_real_token_is_pooled(model, golden):
    outputs = model.encoder(inputs_of(golden))
    for row, last in enumerate((13, 8, 4)):
        alone = model.encoder.pooler(outputs["sequence_output"][row : row + 1, last:])
        np.testing.assert_allclose(outputs["pooled_output"][row], alone[0], atol=1e-6)


def test_saved_model_stays_left_to_right(model, golden, tmp_path):
    save_model_directory(tmp_path / "saved", model)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["is_decoder"] is True
    opened = open_model_directory(tmp_path / "saved")
    assert opened.config == model.config
    again = BertPretrainer(opened.config)
    opened.load_into(again)
    inputs = inputs_of(golden)
    assert np.array_equal(again(inputs)["next_token_logits"], model(inputs)["next_token_logits"])
    assert BertPretrainer.from_config(model.get_config()).config == model.config
