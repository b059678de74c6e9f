"""JAX trains as TensorFlow does, on one or two devices, and shares its checkpoint format."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging
from safetensors.numpy import load_file

from keras_bert.checkpoints.hugging_face import save_model_directory
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.objective import PretrainingObjective
from keras_bert.pretraining.records import find_records, training_batches
from keras_bert.training.checkpoint import CheckpointWriter, restore_latest
from keras_bert.training.objective import StepMetrics, TrainingSettings, TrainState
from keras_bert.training.optimizers import AdamWeightDecay, LinearWarmupDecay
from keras_bert.training.step import make_train_steps
from keras_bert.training.strategy import make_strategy as make_tensorflow_strategy
from tests.training.reference import largest_difference

CONFIG = BertConfig(50, 16, 1, 2, 32, max_position_embeddings=32)
STEPS = 20
WORDS = "encoder/embeddings/word_embeddings"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_records, root, backend_python):
    """Trains on both backends from the same weights and batches, with dropout."""
    python = backend_python("jax")
    folder = tmp_path_factory.mktemp("jax")
    data = find_records(str(write_records(folder / "a.tfrecord", 40)))
    keras.utils.set_random_seed(3)
    model = BertPretrainer(CONFIG)
    save_model_directory(folder / "model", model)
    batches = training_batches(data, CONFIG.vocab_size, 8, seed=0).take(STEPS)
    np.savez(
        folder / "batches.npz",
        **{
            f"{step}/{name}": value
            for step, batch in enumerate(batches.as_numpy_iterator())
            for name, value in batch.items()
        },
    )
    optimizer = AdamWeightDecay(LinearWarmupDecay(1e-3, 50, 2))
    optimizer.build(model.trainable_variables)
    state = TrainState(model, optimizer, PretrainingObjective())
    settings = TrainingSettings(STEPS, 8, jit_compile=False)
    train_steps = make_train_steps(tf.distribute.get_strategy(), state, settings)
    metrics = train_steps(iter(batches), tf.constant(STEPS)).numpy()._asdict()
    metrics = {f"metrics/{name}": value for name, value in metrics.items()}
    weights = {v.path: keras.ops.convert_to_numpy(v) for v in model.trainable_variables}
    np.savez(folder / "reference.npz", **metrics, **weights)
    writer = CheckpointWriter(folder / "tensorflow")
    writer.save(STEPS, model, optimizer)
    writer.close()
    done = subprocess.run(
        [python, str(root / "tests" / "training" / "steps_on_jax.py"), str(folder)],
        env=os.environ
        | {
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2 "
            "--xla_backend_optimization_level=0",  # For fast compilation.
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture
def jax_step():
    """Returns the module, which needs JAX."""
    pytest.importorskip("jax", reason="jax is not installed")
    from keras_bert.training import jax_step

    return jax_step


@pytest.fixture(scope="module")
def facts(folder):
    return json.loads((folder / "facts.json").read_text())


def result(folder, case):
    stored = dict(np.load(folder / f"{case}.npz"))
    return StepMetrics(*(stored.pop(f"metrics/{name}") for name in StepMetrics._fields)), stored


def test_losses_equal_tensorflow_over_20_steps_with_dropout(folder):
    metrics, weights = result(folder, "one")
    expected_metrics, expected = result(folder, "reference")
    ours, theirs = (each.losses(PretrainingObjective()) for each in (metrics, expected_metrics))
    assert len(ours) == STEPS
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    for one, two in zip(metrics, expected_metrics, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4)
    assert largest_difference(weights, expected) < 1e-4


@pytest.mark.parametrize("case", ["data_parallel", "model_parallel", "growing"])
def test_other_configurations_equal_one_device_and_one_batch(folder, case):
    metrics, weights = result(folder, case)
    expected_metrics, expected = result(folder, "one")
    for one, two in zip(metrics, expected_metrics, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)
    assert largest_difference(weights, expected) < 1e-6


def test_recomputing_chains_changes_no_loss_and_no_weight(folder):
    metrics, weights = result(folder, "one")
    expected_metrics, expected = result(folder, "chains")
    ours, theirs = (each.losses(PretrainingObjective()) for each in (metrics, expected_metrics))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
    assert largest_difference(weights, expected) < 2e-5


def test_backward_pass_keeps_few_bytes_per_token(facts):
    # The inputs of matrix products and of chains are half of all intermediates.
    assert facts["residual_bytes_per_token"] < 2000


@pytest.mark.parametrize("rows", ["once", "packed"])
def test_step_has_no_scatter(facts, rows):
    # GPUs add the rows of a scatter in no fixed order, and one after the other where ids repeat.
    assert facts["scatters"][rows] == 0


def test_each_step_is_compiled_once(facts):
    counts = facts["compilations"]
    assert counts == dict.fromkeys(counts, 1)


def test_model_parallel_splits_only_the_vocabulary_and_its_moments(facts):
    replicated, sharded = facts["data_parallel"], facts["model_parallel"]
    halved = {path for path in replicated if replicated[path] != sharded[path]}
    assert replicated[WORDS] == [50, 16]
    assert sharded[WORDS] == [25, 16]
    variables = {WORDS} | {path for path in replicated if path.endswith("output_bias")}
    moments = {
        f"adam_weight_decay/{path.replace('/', '_')}_{kind}" for path in variables for kind in "mv"
    }
    assert halved == variables | moments


def test_jax_reads_tensorflow_checkpoints_and_writes_identical_ones(folder, facts):
    assert facts["restored_step"] == STEPS
    for name in ("model.safetensors", "optimizer.safetensors"):
        theirs, ours = (
            load_file(next((folder / backend).iterdir()) / name)
            for backend in ("tensorflow", "jax")
        )
        assert ours.keys() == theirs.keys()
        for path, value in theirs.items():
            np.testing.assert_array_equal(ours[path], value)


def test_tensorflow_reads_jax_checkpoints(folder):
    model = BertPretrainer(CONFIG)
    optimizer = AdamWeightDecay(LinearWarmupDecay(1e-3, 50, 2))
    optimizer.build(model.trainable_variables)
    assert restore_latest(folder / "jax", model, optimizer) == STEPS
    _, expected = result(folder, "reference")
    weights = {v.path: keras.ops.convert_to_numpy(v) for v in model.trainable_variables}
    assert largest_difference(weights, expected) == 0.0
    assert int(optimizer.iterations.numpy()) == STEPS


@pytest.mark.parametrize("kind", ["an_example_a_row", "packed", "causal"])
def test_fused_attention_equals_plain_attention(facts, kind):
    assert facts["fused_difference"][kind] < 1e-5


def test_kernels_for_gpus_equal_the_chains(facts):
    # In bfloat16, a rounding of the last bit may differ; `biased` rounds the bias too.
    for case, difference in facts["kernel_difference"].items():
        limit = 4e-3 if case.startswith("biased,") else 1e-3
        assert difference < (limit if "bfloat16" in case else 1e-6), case


@pytest.mark.parametrize("case", ["packed", "causal", "bfloat16", "two devices"])
def test_attention_with_dropout_equals_plain_attention_and_its_gradients(facts, case):
    assert facts["attention_difference"][case] < (1e-2 if case == "bfloat16" else 1e-6)


def test_attention_drops_the_same_elements_as_plain_attention(facts):
    in_both, in_one = facts["dropped_elements"]
    assert in_both > 1000
    assert in_one == 0


def test_layer_computes_attention_where_kernels_decline(facts):
    assert facts["layer_difference"] < 1e-6


def test_flops_of_a_large_model_are_counted(facts):
    counted, expected = facts["flops"]
    assert counted == pytest.approx(expected)


def test_vocabulary_size_that_is_not_divisible_is_rejected(facts):
    expected = "--model_parallel=2: expected a divisor of the vocabulary size, which is 51"
    assert facts["odd_vocabulary"] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("multi_worker_mirrored",), "multi_worker_mirrored: not supported with KERAS_BACKEND=jax"),
        (("default", 2), "--num_devices=2 needs --distribution_strategy=mirrored, got default"),
        (("default", 0, 1.0, 2), "--model_parallel=2 needs --distribution_strategy=mirrored"),
        (("tpu",), "found no TPU: JAX has cpu devices"),
    ],
)
def test_unavailable_devices_are_rejected(jax_step, arguments, message):
    with pytest.raises(InputError, match=message):
        jax_step.make_strategy(*arguments)


@pytest.mark.parametrize(
    ("devices", "precision"),
    [
        ([("gpu", "9.0"), ("gpu", "8.0")], "bfloat16"),
        ([("gpu", "10.0"), ("gpu", "7.5")], "float32"),
        ([("gpu", "gfx90a")], "float32"),
        ([("cpu", None)], "float32"),
    ],
)
def test_bfloat16_is_chosen_if_all_gpus_support_it(jax_step, monkeypatch, devices, precision):
    found = [SimpleNamespace(platform=kind, compute_capability=own) for kind, own in devices]
    monkeypatch.setattr(jax_step.jax, "devices", lambda: found)
    monkeypatch.setattr(jax_step, "_may_have_gpu", lambda: True)
    assert jax_step.fastest_precision() == precision


@pytest.mark.parametrize(
    ("driver", "plugin", "platforms", "may_have", "warns"),
    [
        (True, "xla_cuda12", None, True, False),
        (False, "xla_cuda12", None, False, False),
        (True, None, None, False, True),
        (True, "xla_tpu", None, False, True),
        (True, "xla_cuda12", "cpu", False, False),
        (True, None, "cpu", False, False),
        (False, None, None, False, False),
    ],
)
def test_jax_is_started_to_choose_the_precision_only_with_driver_and_plugin_of_a_gpu(
    jax_step, monkeypatch, tmp_path, caplog, driver, plugin, platforms, may_have, warns
):
    """The CPU could not be split into devices afterwards. A GPU without the plugin is reported."""
    started = []
    config = SimpleNamespace(jax_platforms=platforms)
    devices = [SimpleNamespace(platform="gpu", compute_capability="9.0")]
    fake = SimpleNamespace(
        devices=lambda: started.append(1) or devices, config=config, __version__="0.10.2"
    )
    monkeypatch.setattr(jax_step, "jax", fake)
    monkeypatch.setattr(jax_step, "_DRIVERS", [tmp_path if driver else tmp_path / "absent"])
    monkeypatch.setitem(sys.modules, "jax_plugins", None)
    if plugin:
        (tmp_path / plugin).mkdir()
        (tmp_path / plugin / "__init__.py").touch()
        plugins = SimpleNamespace(__path__=[str(tmp_path)])
        monkeypatch.setitem(sys.modules, "jax_plugins", plugins)
    assert jax_step.fastest_precision() == ("bfloat16" if may_have else "float32")
    assert bool(started) == may_have
    monkeypatch.setattr(
        "absl.logging.log_first_n", lambda level, text, n, *values: logging.warning(text, *values)
    )
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: ["cpu:0"])
    with caplog.at_level("WARNING", "absl"):
        jax_step.make_strategy()
    warning = (
        "This machine has an NVIDIA GPU that JAX cannot use without CUDA; to install it, run "
        "pip install 'jax[cuda12]==0.10.2'"
    )
    assert caplog.messages == [warning] * warns


@pytest.mark.parametrize(
    ("version", "has_gpu", "flags", "is_set"),
    [
        ((0, 10, 2), True, "", True),
        ((0, 11, 0), True, "--xla_dump_to=a", True),
        ((0, 11, 1), True, "", False),
        ((0, 10, 1), True, "", False),
        ((0, 11, 0), False, "", False),
        ((0, 11, 0), True, "--xla_backend_extra_options=b", False),
    ],
)
def test_slow_atomics_are_avoided_where_jaxlib_has_them(
    jax_step, monkeypatch, version, has_gpu, flags, is_set
):
    monkeypatch.setattr(jax_step.jaxlib.version, "__version_info__", version)
    monkeypatch.setattr(jax_step, "_may_have_gpu", lambda: has_gpu)
    monkeypatch.setenv("XLA_FLAGS", flags)
    started_with = []
    jax = jax_step.jax
    monkeypatch.setattr(jax, "devices", lambda: started_with.append(os.environ["XLA_FLAGS"]))
    jax_step.use_fast_atomics()
    option = "--xla_backend_extra_options=-nvptx-allow-ftz-atomics"
    assert started_with == ([f"{flags} {option}".strip()] if is_set else [])
    assert os.environ["XLA_FLAGS"] == flags  # TensorFlow would end the process at the option.


def test_tensorflow_rejects_model_parallel():
    with pytest.raises(InputError, match="--model_parallel=2 needs KERAS_BACKEND=jax"):
        make_tensorflow_strategy("mirrored", 2, model_parallel=2)


@pytest.mark.parametrize(
    "ids",
    [
        np.random.default_rng(0).zipf(1.3, (5, 80)) % 50,  # Frequencies like those of words.
        np.repeat([3, 0, 49], [129, 127, 400]),  # A token may fill several chunks.
        np.array([[49]]),
    ],
    ids=["words", "long_runs", "single"],
)
def test_rows_of_equal_ids_are_added(jax_step, ids):
    rows = np.random.default_rng(1).normal(size=(*ids.shape, 3)).astype(np.float32)
    expected = np.zeros((50, 3))
    np.add.at(expected, ids, rows)
    as_array = jax_step.jnp.asarray
    sums = jax_step.sum_by_id(as_array(ids, "int32"), as_array(rows), 50)
    np.testing.assert_allclose(sums, expected, atol=1e-5)
