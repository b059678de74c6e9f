"""Optimizers: clipping, decays, schedule, state, trust ratio, loss scale and rounding."""

import json
import os
import re
import subprocess
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.models import BertClassifier
from keras_bert.random_bits import site_key
from keras_bert.training.optimizers import (
    AdamWeightDecay,
    Lamb,
    LinearWarmupDecay,
    LossScale,
    clip_scale,
    create_optimizer,
    global_norm,
    layer_decay_multipliers,
    round_stochastically,
)
from keras_bert.training.step import apply_adam
from tests.training import reference

# --- clipping ---


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_non_finite_norm_is_not_hidden(bad, jit_compile):
    """The value 1e30 is finite, but its square is not."""

    @tf.function(jit_compile=jit_compile)
    def scale_of(*gradients):
        norm = global_norm(gradients)
        return norm, clip_scale(norm)

    norm, scale = scale_of(tf.constant([1.0, bad]), tf.constant([1.0]))
    assert not np.isfinite(norm)
    assert np.isnan(scale)


def test_norm_of_low_precision_gradients_is_float32():
    norm = global_norm([tf.fill([1000], tf.constant(2.0, tf.bfloat16))])
    assert norm.dtype == tf.float32
    np.testing.assert_allclose(float(norm), np.sqrt(4000.0), rtol=1e-6)


# --- AdamWeightDecay ---


PATHS = {
    "bert_encoder/embeddings/word_embeddings/embeddings": True,
    "bert_encoder/encoder/layer_0/attention/self/query/kernel": True,
    "bert_encoder/encoder/layer_0/attention/self/query/bias": False,
    "bert_encoder/encoder/layer_0/attention/output/LayerNorm/gamma": False,
    "bert_encoder/encoder/layer_0/attention/output/LayerNorm/beta": False,
    "masked_lm/output_bias": False,
    "user_model/layer_normalization_3/gamma": False,
    "user_model/layer_norm_stack/dense/kernel": True,
    "user_model/debiased/kernel": True,
}


def variables(paths):
    """Returns Keras variables [3] of 2.0 with the given paths."""
    return [reference.variable(path, [2.0] * 3) for path in paths]


def test_weight_decay_depends_on_the_full_path():
    weights = variables(PATHS)
    optimizer = AdamWeightDecay(0.5)
    optimizer.apply([np.zeros(3, "float32")] * len(weights), weights)
    for weight, decays in zip(weights, PATHS.values(), strict=True):
        expected = 2.0 - 0.5 * 0.01 * 2.0 if decays else 2.0
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-6, err_msg=weight.path)


def test_first_matching_learning_rate_multiplier_applies():
    table = [("layer_0/", 0.5), ("encoder/", 0.1), ("frozen", 0.0)]
    paths = ["encoder/layer_0/bias", "encoder/layer_1/bias", "frozen/kernel", "head/bias"]
    weights = variables(paths)
    AdamWeightDecay(0.01, learning_rate_multipliers=table).apply(
        [np.ones(3, "float32")] * 4, weights
    )
    moved = [2.0 - w.numpy()[0] for w in weights]
    np.testing.assert_allclose(moved, np.array([0.5, 0.1, 0, 1]) * 0.0316217, rtol=1e-4)


@pytest.mark.parametrize("rule", ["adamw_corrected", "lamb"])
def test_saved_model_continues_training_as_if_never_saved(tmp_path, rule):
    model, optimizer = reference.build(rule, learning_rate_multipliers=[("kernel", 0.5)])
    model.compile(optimizer, loss="mse")
    data = reference.batches(6)
    for ids, targets in data[:3]:
        model.train_on_batch(ids, targets)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == optimizer.get_config()
    assert isinstance(again.optimizer._learning_rate, LinearWarmupDecay)
    for ids, targets in data[3:]:
        model.train_on_batch(ids, targets)
        again.train_on_batch(ids, targets)
    assert reference.distance(again.get_weights(), model.get_weights()) == 0
    assert int(again.optimizer.iterations.numpy()) == 6


# --- Lamb ---


@pytest.mark.parametrize(
    ("path", "weight", "gradient", "change"),
    [
        ("a/LayerNorm/gamma", [30.0, 40.0], [1.0, -1.0], [-0.1, 0.1]),  # Not rescaled or decayed.
        ("a/kernel", [0.0, 0.0], [1.0, 1.0], [-0.1, -0.1]),  # The ratio of zero weights is 1.
    ],
)
def test_excluded_variables_and_zero_weights_are_not_rescaled(path, weight, gradient, change):
    variable = reference.variable(path, weight)
    Lamb(0.1).apply([np.asarray(gradient, "float32")], [variable])
    np.testing.assert_allclose(variable.numpy() - weight, change, rtol=1e-4)


# --- layer decay ---


def factor(path, table):
    return next((value for pattern, value in table if re.search(pattern, path)), 1.0)


def test_factor_of_each_layer():
    table = layer_decay_multipliers(0.5, 12)
    assert factor("classifier/kernel", table) == factor("encoder/pooler/dense/kernel", table) == 1
    for layer in range(12):
        assert factor(f"encoder/layer_{layer}/output/dense/kernel", table) == 0.5 ** (11 - layer)
    assert factor("encoder/embeddings/word_embeddings", table) == 0.5**12


@pytest.mark.parametrize(
    ("dtype", "name", "options"),
    [
        ("mixed_float16", "adamw", {"weight_decay": 0.3, "bias_correction": True}),
        ("float32", "lamb", {"state_dtype": "bfloat16"}),
    ],
)
def test_optimizer_of_a_run_has_its_schedule_layer_decay_and_options(dtype, name, options):
    config = BertConfig(20, 8, 2, 2, 16, max_position_embeddings=8)
    model = BertClassifier(config, 2, dtype=dtype)
    optimizer, scale = create_optimizer(model, 0.1, 100, 25, name, layer_decay=0.5, **options)
    assert optimizer.get_config().items() >= {"name": optimizer.name, **options}.items()
    assert factor("encoder/embeddings/", optimizer.learning_rate_multipliers) == 0.25
    assert len(optimizer.variables) > 2 * len(model.trainable_variables)
    assert (scale is None) == (dtype == "float32")
    for step, rate in ((24, 0.1 * 24 / 25), (25, 0.1 * 75 / 100)):  # The warm-up ends at 25.
        optimizer.iterations.assign(step)
        assert float(optimizer.learning_rate) == pytest.approx(rate)


# --- bfloat16 state ---


ULP = 2.0**-7  # unit in the last place of bfloat16 between 1 and 2


def rounded(values, step=0):
    key = site_key(ops.convert_to_tensor([step], "int32"), 0)
    found = round_stochastically(ops.convert_to_tensor(values, "float32"), key)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    return ops.convert_to_numpy(ops.cast(found, "float32"))


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("share", [0.125, 0.5, 0.75])
def test_value_rounds_to_its_two_neighbours_with_the_right_mean(share, sign):
    found = rounded(np.full([100, 200], sign * (1.0 + share * ULP), "float32"))
    assert set(np.unique(found)) == {sign, sign * (1.0 + ULP)}
    bound = 4.8 * np.sqrt(share * (1 - share) / found.size)  # fails by chance once in a million
    assert abs((np.abs(found) > 1.0).mean() - share) < bound


def test_values_representable_in_bfloat16_are_unchanged():
    values = np.array([0.0, -0.0, 1.0, -1.0 - ULP, 3e38, 1e-38, np.inf, -np.inf, np.nan])
    values = values.astype(ml_dtypes.bfloat16).astype("float32")
    assert rounded(values).tobytes() == values.tobytes()


def test_rounding_depends_only_on_the_key():
    values = np.full([1000], 1.0 + ULP / 2, "float32")
    assert np.array_equal(rounded(values, 5), rounded(values, 5))
    assert 0.4 < (rounded(values, 5) == rounded(values, 6)).mean() < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["adamw", "lamb"])
def test_training_stays_close_to_that_with_float32_state(rule):
    model, optimizer = reference.build(rule, state_dtype="bfloat16")
    for ids, targets in reference.batches():
        found = reference.gradients(model.get_weights(), ids, targets)
        optimizer.apply(reference.clipped([np.asarray(g, "float32") for g in found]))
    moved = reference.distance(reference.train(rule), reference.start())
    assert reference.distance(model.get_weights(), reference.train(rule)) < 0.01 * moved


# --- loss scale ---


@pytest.mark.parametrize(
    ("initial", "growth_steps", "steps", "scales"),
    [
        (8.0, 3, "++-+++", [8.0, 8.0, 4.0, 4.0, 4.0, 8.0]),  # a bad step restarts the count
        (8.0, 3, "+++" * 2, [8.0, 8.0, 16.0, 16.0, 16.0, 32.0]),
        (8.0, 3, "----", [4.0, 2.0, 1.0, 0.5]),
        (2.0**23, 1, "+++", [2.0**24] * 3),  # The limit.
    ],
)
def test_scale_doubles_after_good_steps_in_a_row_and_halves_at_a_bad_one(
    initial, growth_steps, steps, scales
):
    loss_scale = LossScale(AdamWeightDecay(1e-3), initial, growth_steps)
    for step, scale in zip(steps, scales, strict=True):
        loss_scale.update(step == "+")
        assert float(loss_scale.scale.numpy()) == scale


# --- 20 clipped updates with repeated token ids, against float64 NumPy ---


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("rule", ["adamw", "adamw_corrected", "lamb"])
def test_one_device_equals_the_reference(rule, jit_compile):
    model, optimizer = reference.build(rule)

    @tf.function(jit_compile=jit_compile)
    def step(ids, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(ids, training=True) - targets)) / reference.B
        grads = tape.gradient(loss, [v.value for v in model.trainable_variables])
        assert isinstance(grads[0], tf.IndexedSlices)  # repeated ids give sparse gradients
        optimizer.apply(reference.clipped(grads))

    for ids, targets in reference.batches():
        step(ids, targets)
    assert reference.distance(model.get_weights(), reference.train(rule)) < 1e-6


@pytest.mark.parametrize("rule", ["adamw", "adamw_corrected"])
def test_kernel_of_adam_equals_the_reference(rule):
    """Scales the gradients; the rate is twice as high as usual, with a multiplier of 0.5."""
    model, optimizer = reference.build(rule, learning_rate_multipliers=[("", 0.5)])
    for ids, targets in reference.batches():
        found = reference.gradients(model.get_weights(), ids, targets)
        gradients = [tf.constant(2 * gradient, tf.float32) for gradient in found]
        scale = 0.5 * clip_scale(0.5 * global_norm(gradients))
        rate = 2.0 * tf.convert_to_tensor(optimizer.learning_rate)
        apply_adam(optimizer, gradients, model.trainable_variables, scale, rate)
        optimizer.iterations.assign_add(1)
    # The kernel computes 1 - beta_2 in float32, with a relative error of 1e-5 in the moments.
    assert reference.distance(model.get_weights(), reference.train(rule)) < 1e-5


# --- the schedule ---


def test_learning_rate_falls_linearly_to_0_and_keeps_its_precision():
    """test_run_pretraining.py compares the rates of a run with the warm-up and the decay."""
    schedule = LinearWarmupDecay(1e-4, num_train_steps=1_000_000, num_warmup_steps=10_000)
    for step, value in {999_999: 1e-10, 1_000_000: 0, 1_500_000: 0}.items():
        np.testing.assert_allclose(float(schedule(step)), value, rtol=1e-6, err_msg=str(step))


# --- the other backends, through `stateless_apply` ---


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_stateless_run_equals_the_reference(backend_python, backend):
    done = subprocess.run(
        [backend_python(backend), str(Path(__file__).with_name("stateless_run.py"))],
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found.pop("tensorflow_imported")
    assert max(found.values()) < 1e-6, found
