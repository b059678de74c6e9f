"""Packed rows: several examples in one row give the same outputs as each in its own row.

The golden examples have 14, 9 and 5 tokens, so that the last two fill a row of 14 together.
Outputs, loss and gradients must equal those of transformers for unpacked examples (tests/golden).
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from keras_bert.checkpoints.hugging_face import HuggingFaceWeights, open_model_directory
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.training.step import compiled

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ROWS = [[0], [1, 2]]
INPUTS = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "position_ids",
    "example_ids",
    "masked_lm_positions",
    "next_sentence_positions",
)


def pack(batch, rows):
    """Packs the examples listed for each row; their lengths and predictions must fit."""
    length, predictions = batch["input_ids"].shape[1], batch["masked_lm_ids"].shape[1]
    wide, narrow = (len(rows), length), (len(rows), predictions)
    packed = {name: np.zeros(wide, np.int32) for name in INPUTS[:5]}
    packed |= {name: np.zeros(narrow, np.int32) for name in (*INPUTS[5:], "masked_lm_ids")}
    packed |= {"next_sentence_labels": np.zeros(narrow, np.int32)}
    packed |= {f"{name}_weights": np.zeros(narrow, np.float32) for name in HEADS}
    for row, examples in enumerate(rows):
        start = slot = 0
        for number, example in enumerate(examples):
            num_tokens = int(batch["input_mask"][example].sum())
            masked = int(batch["masked_lm_weights"][example].sum())
            columns = slice(start, start + num_tokens)
            for name in INPUTS[:3]:
                packed[name][row, columns] = batch[name][example, :num_tokens]
            packed["position_ids"][row, columns] = np.arange(num_tokens)
            packed["example_ids"][row, columns] = number + 1
            slots = slice(slot, slot + masked)
            for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
                packed[name][row, slots] = batch[name][example, :masked]
            packed["masked_lm_positions"][row, slots] += start
            packed["next_sentence_positions"][row, number] = start
            packed["next_sentence_labels"][row, number] = batch["next_sentence_labels"][example, 0]
            packed["next_sentence_weights"][row, number] = 1.0
            start, slot = start + num_tokens, slot + masked
    return packed


HEADS = ("masked_lm", "next_sentence")


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(GOLDEN / "model_gelu.npz"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    weights = dict(np.load(GOLDEN / "model_weights.npz"))
    config = json.loads(str(weights.pop("config"))) | {"hidden_act": "gelu"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def model(directory):
    opened = open_model_directory(directory)
    model = BertPretrainer(opened.config)
    opened.load_into(model)
    return model


def inputs_of(packed):
    return {name: tf.constant(packed[name]) for name in INPUTS}


def check_outputs(outputs, golden, packed):
    """Compares the hidden states and both heads' logits, example by example."""
    for row, examples in enumerate(ROWS):
        for number, example in enumerate(examples):
            columns = packed["example_ids"][row] == number + 1
            np.testing.assert_allclose(
                np.asarray(outputs["sequence_output"])[row, columns],
                golden["sequence_output"][example, : columns.sum()],
                atol=1e-5,
            )
            np.testing.assert_allclose(
                np.asarray(outputs["next_sentence_logits"])[row, number],
                golden["next_sentence_logits"][example],
                atol=1e-5,
            )
        slots = [(e, p) for e in examples for p in np.flatnonzero(golden["masked_lm_weights"][e])]
        for slot, (example, prediction) in enumerate(slots):
            np.testing.assert_allclose(
                np.asarray(outputs["masked_lm_logits"])[row, slot],
                golden["masked_lm_logits"][example, prediction],
                atol=1e-5,
            )


def check_gradients(loss, gradients, golden):
    """Compares the loss and the gradient of every variable, by its path."""
    assert float(loss) == pytest.approx(float(golden["loss"]), abs=1e-5)
    assert len(gradients) == 46
    for path, gradient in gradients.items():
        theirs = golden[f"gradient/{HuggingFaceWeights.name(path)}"]
        theirs = theirs.T if path.endswith("/kernel") else theirs
        np.testing.assert_allclose(gradient, theirs, atol=1e-5, err_msg=path)


@pytest.mark.slow
def test_outputs_equal_those_of_unpacked_examples(model, golden):
    packed = pack(golden, ROWS)

    @tf.function
    def forward(inputs):
        return {**model.encoder(inputs), **model(inputs)}

    check_outputs(forward(inputs_of(packed)), golden, packed)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["XLA", "XLA on chains"])
def test_loss_and_all_gradients_equal_those_of_unpacked_examples(model, golden, how):
    task = PretrainingObjective()

    def backward(batch):
        weights = task.weights(batch)
        with tf.GradientTape() as tape:
            sums = task.sums(model, batch, False)
            loss = sum(sums[name] / (weights[name] + eps) for name, eps in task.losses.items())
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

    if how == "XLA on chains":
        backward = compiled(backward, True)
    else:
        backward = tf.function(backward, jit_compile=how == "XLA")
    loss, gradients = backward({k: tf.constant(v) for k, v in pack(golden, ROWS).items()})
    paths = [variable.path for variable in model.trainable_variables]
    check_gradients(loss, dict(zip(paths, gradients, strict=True)), golden)


def test_jax_equals_transformers(root, backend_python, directory, golden, tmp_path):
    packed = pack(golden, ROWS)
    np.savez(tmp_path / "packed.npz", **packed)
    command = [
        backend_python("jax"),
        root / "tests" / "run_on_backend.py",
        directory,
        tmp_path / "packed.npz",
        tmp_path / "results.npz",
    ]
    environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    subprocess.run(command, check=True, env=os.environ | environment, timeout=300)
    results = dict(np.load(tmp_path / "results.npz"))

    def part(prefix):
        return {k.removeprefix(prefix): v for k, v in results.items() if k.startswith(prefix)}

    check_outputs(part("plain/"), golden, packed)
    check_gradients(results["loss"], part("gradient/"), golden)


@pytest.mark.slow
def test_example_does_not_depend_on_others_in_its_row(model, golden):
    forward = tf.function(model.encoder)
    packed = pack(golden, ROWS)
    before = forward(inputs_of(packed))["sequence_output"].numpy()
    for number in (1, 2):
        mine = packed["example_ids"][1] == number
        other = packed["input_ids"].copy()
        other[1, ~mine] = (other[1, ~mine] + 7) % 61
        after = forward(inputs_of(packed | {"input_ids": other}))["sequence_output"].numpy()
        assert np.array_equal(after[1, mine], before[1, mine])
        assert np.abs(after[1, ~mine] - before[1, ~mine]).max() > 0.1


def test_dropout_mask_depends_on_the_seed_of_each_row(model, golden):
    packed = inputs_of(pack(golden, ROWS)) | {"dropout_seed": tf.constant([3, 3])}
    one, two = (model(packed, training=True)["next_sentence_logits"].numpy() for _ in range(2))
    assert np.array_equal(one, two)
    other = model(packed | {"dropout_seed": tf.constant([3, 4])}, training=True)
    assert np.array_equal(one[0], other["next_sentence_logits"][0])
    assert not np.array_equal(one[1], other["next_sentence_logits"][1])
