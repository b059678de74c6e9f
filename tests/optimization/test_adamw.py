"""AdamWeightDecay: excluded variables, optimizer state, saved models, and rejected arguments."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.common.errors import InputError
from keras_bert.optimization.adamw import AdamWeightDecay
from keras_bert.optimization.schedules import LinearWarmupDecay

PATHS = {
    "bert_encoder/embeddings/word_embeddings/embeddings": True,
    "bert_encoder/embeddings/LayerNorm/gamma": False,
    "bert_encoder/embeddings/LayerNorm/beta": False,
    "bert_encoder/encoder/layer_0/attention/self/query/kernel": True,
    "bert_encoder/encoder/layer_0/attention/self/query/bias": False,
    "bert_encoder/encoder/layer_0/attention/output/LayerNorm/gamma": False,
    "bert_encoder/pooler/dense/kernel": True,
    "masked_lm/output_bias": False,
    "user_model/layer_normalization_3/gamma": False,
    "user_model/layer_norm_stack/dense/kernel": True,
    "user_model/debiased/kernel": True,
}


@pytest.fixture
def variables(reference):
    """Returns a function that creates Keras variables [3] of 2.0 with the given paths."""
    return lambda paths: [reference.variable(path, [2.0] * 3) for path in paths]


def test_weight_decay_depends_on_the_full_path(variables):
    weights = variables(PATHS)
    optimizer = AdamWeightDecay(0.5)
    optimizer.apply([np.zeros(3, "float32")] * len(weights), weights)
    for weight, decays in zip(weights, PATHS.values(), strict=True):
        expected = 2.0 - 0.5 * 0.01 * 2.0 if decays else 2.0
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-6, err_msg=weight.path)


def test_only_kernels_and_embeddings_of_the_pretrainer_are_decayed():
    from keras_bert.config import BertConfig
    from keras_bert.models import BertPretrainer

    model = BertPretrainer(BertConfig(20, 8, 1, 2, 16))
    optimizer = AdamWeightDecay(0.5)
    weights = model.trainable_variables
    for weight in weights:
        weight.assign(np.ones(weight.shape))
    optimizer.apply([np.zeros(w.shape, "float32") for w in weights], weights)
    moved = {w.path for w in weights if not np.all(w.numpy() == 1)}
    assert moved == {w.path for w in weights if w.path.endswith(("kernel", "embeddings"))}
    assert len(weights) - len(moved) == 18  # gamma and beta of 4 LayerNorms, 10 biases


def test_tf_variable_is_identified_by_its_name():
    weights = [tf.Variable([2.0], name="LayerNorm/gamma"), tf.Variable([2.0], name="a/kernel")]
    AdamWeightDecay(0.5).apply([np.zeros(1, "float32")] * 2, weights)
    np.testing.assert_allclose([w.numpy()[0] for w in weights], [2.0, 1.99], rtol=1e-6)


def test_first_step_has_no_bias_correction(variables):
    """m = 0.1 g and v = 0.001 g^2, so the step is 0.1 / sqrt(0.001) = 3.1623 learning rates."""
    (weight,) = variables(["a/bias"])
    AdamWeightDecay(0.01).apply([np.full(3, 5.0, "float32")], [weight])
    np.testing.assert_allclose(2.0 - weight.numpy(), 0.0316228, rtol=1e-5)


def test_bias_correction_makes_the_first_step_one_learning_rate(variables):
    (weight,) = variables(["a/bias"])
    AdamWeightDecay(0.01, bias_correction=True).apply([np.full(3, 5.0, "float32")], [weight])
    np.testing.assert_allclose(2.0 - weight.numpy(), 0.01, rtol=1e-5)


def test_first_warmup_update_fills_the_moments_and_changes_no_weight(variables):
    (weight,) = variables(["a/kernel"])
    optimizer = AdamWeightDecay(LinearWarmupDecay(1.0, num_train_steps=10, num_warmup_steps=2))
    optimizer.apply([np.ones(3, "float32")], [weight])
    np.testing.assert_array_equal(weight.numpy(), 2.0)
    moments = {v.path.rsplit("_", 1)[1]: v.numpy()[0] for v in optimizer.variables[1:]}
    assert moments == pytest.approx({"m": 0.1, "v": 0.001})
    assert int(optimizer.iterations.numpy()) == 1
    assert float(optimizer.learning_rate) == 0.5


def test_repeated_rows_are_summed_before_squaring():
    gradient = tf.IndexedSlices(
        tf.constant([[1.0], [2.0]]), tf.constant([4, 4]), tf.constant([6, 1])
    )
    weight = keras.Variable(np.zeros([6, 1], "float32"), name="embeddings")
    optimizer = AdamWeightDecay(0.1)
    optimizer.apply([gradient], [weight])
    second = optimizer.variables[-1].numpy()
    # Without the sum, the value would be 0.005.
    np.testing.assert_allclose(second[4, 0], 0.001 * 9.0, rtol=1e-6)
    assert np.count_nonzero(second) == 1


def test_first_matching_learning_rate_multiplier_applies(variables):
    table = [("layer_0/", 0.5), ("encoder/", 0.1), ("frozen", 0.0)]
    paths = ["encoder/layer_0/bias", "encoder/layer_1/bias", "frozen/kernel", "head/bias"]
    weights = variables(paths)
    AdamWeightDecay(0.01, learning_rate_multipliers=table).apply(
        [np.ones(3, "float32")] * 4, weights
    )
    moved = [2.0 - w.numpy()[0] for w in weights]
    np.testing.assert_allclose(moved, np.array([0.5, 0.1, 0, 1]) * 0.0316217, rtol=1e-4)


def test_saved_model_continues_training_as_if_never_saved(reference, tmp_path):
    model, optimizer = reference.build("adamw_corrected")
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


def test_config_round_trip_keeps_all_settings():
    table = [("layer_1/", 0.9), ("layer_0/", 0.81)]
    optimizer = AdamWeightDecay(
        1e-3, 0.02, 0.8, 0.99, 1e-5, True, ["x"], table, global_clipnorm=2.0
    )
    config = optimizer.get_config()
    assert AdamWeightDecay.from_config(config).get_config() == config
    assert config["weight_decay"] == 0.02
    assert config["learning_rate_multipliers"] == [["layer_1/", 0.9], ["layer_0/", 0.81]]


def test_state_names_do_not_depend_on_earlier_optimizers(variables):
    paths = []
    for _ in range(2):
        optimizer = AdamWeightDecay(1e-3)
        optimizer.build(variables(["bert/a/kernel"]))
        paths.append([v.path for v in optimizer.variables if "kernel" in v.path])
    expected = ["adam_weight_decay/bert_a_kernel_m", "adam_weight_decay/bert_a_kernel_v"]
    assert paths == [expected] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta_1": 1.0}, "beta_1 must lie in [0, 1), got 1.0"),
        ({"beta_2": -0.1}, "beta_2 must lie in [0, 1), got -0.1"),
        ({"epsilon": -1e-6}, "epsilon must not be negative, got -1e-06"),
        ({"weight_decay": float("nan")}, "weight_decay must not be negative, got nan"),
        ({"exclude_from_weight_decay": ["("]}, "'(' is not a valid regular expression"),
        ({"exclude_from_weight_decay": "bias"}, "exclude_from_weight_decay must be a list"),
        ({"learning_rate_multipliers": [("[", 1.0)]}, "'[' is not a valid regular expression"),
    ],
)
def test_invalid_arguments_are_quoted_in_the_error(arguments, message):
    with pytest.raises(InputError) as error:
        AdamWeightDecay(1e-3, **arguments)
    assert message in str(error.value)


def test_keras_exclude_from_weight_decay_is_rejected():
    with pytest.raises(InputError, match="cannot be called; pass regular expressions"):
        AdamWeightDecay(1e-3).exclude_from_weight_decay(var_names=["bias"])
