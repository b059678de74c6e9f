"""The networks as Keras models: shapes, precision, dropout, LoRA, int8, files, input keys."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.checkpoints.weights import weights_of
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from tests import processes

CONFIG = BertConfig(30, 16, 2, 2, 24, max_position_embeddings=12, initializer_range=0.3)
NETWORKS = {
    "encoder": BertEncoder,
    "pretrainer": BertPretrainer,
    "left-to-right": lambda config, **kwargs: BertPretrainer(
        {**config.to_dict(), "is_decoder": True}, **kwargs
    ),
    "classifier": lambda config, **kwargs: BertClassifier(config, 3, **kwargs),
    "token classifier": lambda config, **kwargs: BertTokenClassifier(config, 5, **kwargs),
    "span labeler": BertSpanLabeler,
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def inputs_of(model):
    random = np.random.default_rng(0)
    inputs = {
        "input_ids": random.integers(0, 30, (4, 10), np.int32),
        "input_mask": (np.arange(10) < random.integers(3, 11, (4, 1))).astype(np.int32),
        "segment_ids": random.integers(0, 2, (4, 10), np.int32),
        "masked_lm_positions": random.integers(0, 7, (4, 3), np.int32),
    }
    return {key: inputs[key] for key in model.required_inputs}


def difference(outputs, expected):
    """Returns the largest difference relative to the largest value."""
    return max(
        np.abs(np.asarray(outputs[key]) - np.asarray(value)).max() / np.abs(value).max()
        for key, value in expected.items()
    )


@every_network
def test_every_layer_has_a_config_a_shape_and_a_summary(name):
    model, lines = NETWORKS[name](CONFIG), []
    model.summary(print_fn=lambda text, **_: lines.append(text), expand_nested=True)
    text = "\n".join(lines)
    assert "?" not in text
    assert "(None, None, 16)" in text
    assert f"{model.count_params():,}" in text
    for layer in model._flatten_layers():
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
        if layer._build_shapes_dict:  # Dropout layers are not built.
            assert layer.compute_output_shape(**layer._build_shapes_dict)


@every_network
def test_output_shapes_equal_those_of_a_call(name):
    model = NETWORKS[name](CONFIG)
    inputs, paths = inputs_of(model), [variable.path for variable in model.variables]
    assert len({*paths}) == len(paths)
    outputs = model(inputs)
    assert [variable.path for variable in model.variables] == paths
    shapes = model.compute_output_shape({key: value.shape for key, value in inputs.items()})
    assert shapes == {key: tuple(value.shape) for key, value in outputs.items()}
    symbolic = model({key: keras.Input([None], dtype="int32", name=key) for key in inputs})
    assert {key: value.dtype for key, value in symbolic.items()} == {
        key: value.dtype.name for key, value in outputs.items()
    }
    free = {key: tuple(value.shape) for key, value in symbolic.items()}
    assert all(shape[0] is None for shape in free.values())
    assert {key: len(shape) for key, shape in free.items()} == {
        key: len(shape) for key, shape in shapes.items()
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"token_ids": "input_ids"}, "without input_ids, with the unknown token_ids; expected inp"),
        ({"position_id": None}, "with the unknown position_id; expected input_ids, input_mask, se"),
        ({None: "input_mask"}, "without input_mask; expected .* and optionally dropout_seed, pos"),
    ],
)
def test_wrong_input_key_is_named_with_the_expected_ones(changed, message):
    model = BertClassifier(CONFIG, 2)
    inputs = inputs_of(model)
    for new, old in changed.items():
        value = inputs.pop(old) if old else inputs["input_ids"]
        if new:
            inputs[new] = value
    model.compile(loss={"logits": "mse"})
    calls = (model, model.predict, lambda x: model.fit(x, {"logits": np.zeros((4, 2))}))
    for call in calls:
        with pytest.raises(InputError, match=f"BertClassifier: inputs have the keys .*{message}"):
            call(inputs)


def test_inputs_that_are_not_a_dict_are_rejected():
    with pytest.raises(InputError, match=r"inputs are a ndarray; expected input_ids, .* in a dict"):
        BertEncoder(CONFIG)(np.ones((2, 3), "int32"))


def test_masked_lm_needs_positions_and_left_to_right_does_not():
    model = BertPretrainer(CONFIG)
    inputs = inputs_of(model)
    del inputs["masked_lm_positions"]
    with pytest.raises(InputError, match="without masked_lm_positions"):
        model(inputs)
    assert NETWORKS["left-to-right"](CONFIG)(inputs).keys() == {"next_token_logits"}


@every_network
def test_precision_files_and_dropout_of_every_network(name, tmp_path):
    model = NETWORKS[name](CONFIG, dtype="mixed_bfloat16")
    exact = NETWORKS[name](CONFIG)
    for target, source in zip(exact.weights, model.weights, strict=True):
        assert source.dtype == "float32"
        target.assign(source)
    inputs = inputs_of(exact)
    outputs, expected = model(inputs), exact(inputs)
    for key, value in outputs.items():
        assert value.dtype == ("bfloat16" if name == "encoder" else "float32")
        assert difference({key: tf.cast(value, "float32")}, {key: expected[key]}) < 0.06
    exact.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (type(loaded), loaded.config) == (type(exact), exact.config)
    assert len(loaded.variables) == len(exact.variables)
    assert difference(loaded(inputs), expected) == 0.0
    # A row's dropout depends on its seed alone.
    inputs["dropout_seed"] = np.arange(100, 104, dtype=np.int32)
    full = exact(inputs, training=True)
    parts = [{key: value[rows] for key, value in inputs.items()} for rows in ([0, 1], [2, 3])]
    halves = [exact(part, training=True) for part in parts]
    for key, value in full.items():
        joined = np.concatenate([half[key] for half in halves])
        np.testing.assert_allclose(joined, value, atol=1e-5)
        assert np.abs(value - expected[key]).max() > 0.01
    inputs["dropout_seed"] += np.array([0, 0, 0, 1], np.int32)
    key, other = next(iter(exact(inputs, training=True).items()))
    np.testing.assert_allclose(other[:3], full[key][:3], atol=1e-5)
    assert np.abs(other[3] - full[key][3]).max() > 1e-3


@pytest.mark.slow
def test_dropout_without_seeds_differs_between_calls():
    keras.utils.set_random_seed(1)
    model = BertClassifier(CONFIG, 2)
    inputs = inputs_of(model)
    forward = tf.function(lambda: model(inputs, training=True)["logits"])
    first, second = forward(), forward()
    assert np.abs(first - second).max() > 1e-4
    assert np.array_equal(model(inputs)["logits"], model(inputs, training=False)["logits"])


def test_padding_and_wide_integers_do_not_change_the_outputs():
    encoder = BertEncoder(CONFIG)
    short = {**inputs_of(encoder), "input_mask": np.ones((4, 10), np.int32)}
    padded = {name: np.pad(value, ((0, 0), (0, 2))) for name, value in short.items()}
    wide = {name: value.astype("int64") for name, value in padded.items()}
    a, b, c = encoder(short), encoder(padded), encoder(wide)
    np.testing.assert_allclose(b["sequence_output"][:, :10], a["sequence_output"], atol=1e-5)
    np.testing.assert_allclose(b["pooled_output"], a["pooled_output"], atol=1e-5)
    assert np.array_equal(b["pooled_output"], c["pooled_output"])


def test_variable_paths_initial_values_and_dropout_sites():
    first, second = BertPretrainer(CONFIG), BertPretrainer(CONFIG)
    paths = [variable.path for variable in first.weights]
    assert paths == [variable.path for variable in second.weights]
    assert "encoder/layer_0/attention/self/query/kernel" in paths
    assert "encoder/layer_1/output/LayerNorm/gamma" in paths
    assert "masked_lm/output_bias" in paths
    encoder = BertClassifier(CONFIG, 2).encoder
    names = [variable.path for variable in encoder.weights]
    assert names == [path for path in paths if path.startswith("encoder/")]
    kernels = [np.asarray(v) for v in first.weights if v.ndim == 2]
    starts = {kernel.ravel()[:4].tobytes() for kernel in kernels}
    assert len(starts) == len(kernels) == 18
    sites = [layer.site for layer in encoder._flatten_layers() if type(layer).__name__ == "Dropout"]
    assert sorted(sites) == list(range(1 + 3 * CONFIG.num_hidden_layers))
    assert encoder.next_dropout_site == len(sites)


@pytest.mark.parametrize(("name", "parameters"), [("tiny", 4_385_920), ("mini", 11_170_560)])
def test_parameter_counts_equal_those_of_the_released_models(name, parameters):
    # test_memory.py compares the number with that of an encoder.
    assert BertConfig.from_json(name).num_encoder_weights == parameters


@pytest.mark.slow
def test_lora_adapts_all_12_kernels_and_trains_only_lora_and_the_head():
    model = BertClassifier(CONFIG, 2)
    inputs, frozen = inputs_of(model), {v.path: np.asarray(v) for v in model.encoder.weights}
    before = model(inputs)
    model.enable_lora(2, lora_alpha=4)
    assert difference(model(inputs), before) == 0.0
    paths = [variable.path for variable in model.trainable_variables]
    assert len(paths) == 2 * 12 + 2
    assert sum(path.endswith("/lora_kernel_a") for path in paths) == 12
    assert paths[-2:] == ["classifier/kernel", "classifier/bias"]
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss={"logits": "mse"})
    model.fit(inputs, {"logits": np.ones((4, 2))}, epochs=2, verbose=0)
    assert difference(model(inputs), before) > 0.01
    for variable in model.encoder.weights:
        if variable.path in frozen:
            assert np.array_equal(variable, frozen[variable.path])


def with_lora():
    """Returns a classifier whose LoRA matrices are not 0."""
    model = BertClassifier(CONFIG, 2)
    model.enable_lora(2, lora_alpha=3)
    for variable in model.trainable_variables:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    return model


def test_files_have_merged_kernels(tmp_path):
    model = with_lora()
    assert weights_of(model).keys() == {v.path for v in BertClassifier(CONFIG, 2).weights}
    save_model_directory(tmp_path / "model", model)
    model.save(tmp_path / "model.keras")
    of_keras = keras.models.load_model(tmp_path / "model.keras")
    assert len(of_keras.weights) == len(BertClassifier(CONFIG, 2).weights)
    for again in (BertClassifier.from_pretrained(tmp_path / "model"), of_keras):
        assert difference(again(inputs_of(model)), model(inputs_of(model))) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_int8_is_close_and_restored_from_a_keras_file(dtype, tmp_path):
    keras.utils.set_random_seed(0)  # The rounding error depends on the weights.
    model = BertPretrainer(CONFIG, dtype=dtype)
    inputs = inputs_of(model)
    before = model(inputs)
    model.quantize("int8")
    kernels = [v for v in model.variables if v.path.endswith("/kernel")]
    assert {v.dtype for v in kernels} == {"int8"}
    assert len(kernels) == 2 * 6 + 3
    after = model(inputs)
    assert 0 < difference(after, before) < 0.06
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.encoder.blocks[0].intermediate.dense.kernel.dtype == "int8"
    assert difference(again(inputs), after) == 0.0
    with pytest.raises(InputError, match=r"is quantized to int8; expected float weights"):
        weights_of(model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretrainer", "left-to-right"])
def test_export_needs_no_signature(name, tmp_path):
    model = NETWORKS[name](CONFIG)
    inputs = inputs_of(model)
    model.export(tmp_path / "saved", verbose=False)
    served = tf.saved_model.load(tmp_path / "saved")
    for rows, length in ((4, 10), (2, 7)):
        part = {key: value[:rows, :length] for key, value in inputs.items()}
        outputs = served.serve({key: tf.constant(value) for key, value in part.items()})
        assert difference(outputs, model(part)) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretrainer", "left-to-right"])
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_litert_files_need_only_built_in_operators(name, tmp_path):
    model = NETWORKS[name](CONFIG)
    inputs = inputs_of(model)
    model.export(tmp_path / "model.tflite", format="litert", verbose=False)
    interpreter = tf.lite.Interpreter(
        str(tmp_path / "model.tflite"),
        experimental_op_resolver_type=tf.lite.experimental.OpResolverType.BUILTIN,
    )
    run = interpreter.get_signature_runner()
    for rows, length in ((4, 10), (2, 7)):
        part = {key: inputs[key][:rows, :length] for key in run.get_input_details()}
        outputs = run(**{key: value.astype(np.int32) for key, value in part.items()})
        assert difference(outputs, model(part)) < 1e-5
    operators = {op["op_name"] for op in interpreter._get_ops_details()}
    assert not [name for name in operators if name.startswith("Flex")]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fit_lora_int8_and_files_work_on_other_backends(
    backend, backend_python, root, tmp_path, monkeypatch
):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    script = root / "tests" / "models" / "network_on_backend.py"
    processes.run_on(backend, backend_python(backend), [script, tmp_path])
