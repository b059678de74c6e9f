"""TF1 checkpoints: Google's names, layouts and outputs, and every form of their paths."""

import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.checkpoints.open import GoogleWeights, open_checkpoint
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertPretrainer, BertSpanLabeler
from tests.other_formats import write_tf1

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
INPUTS = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")


@pytest.fixture
def released(shared_data, tmp_path):
    """Copies the public checkpoint."""
    source = shared_data / "checkpoints" / "keras_bert_test_checkpoint"
    return shutil.copytree(source, tmp_path / "uncased_L-2_H-4_A-4")


@pytest.fixture
def written(tiny, tmp_path):
    """Writes a checkpoint; returns its path and its model."""
    model = tiny.make("pretrainer")
    write_tf1(tmp_path / "tf1", model, tiny.vocab)
    return tmp_path / "tf1", model


def rewrite(prefix, change):
    """Applies a function to the variables of a checkpoint and rewrites it."""
    reader = tf.train.load_checkpoint(str(prefix))
    names = reader.get_variable_to_shape_map()
    values = change({name: reader.get_tensor(name) for name in names})
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=list(values.values()),
    )


def assert_same_outputs(model, golden):
    """Checks that the outputs on the golden batch are those of Google's code."""
    inputs = {name: golden[name] for name in INPUTS}
    found = {**model.encoder(inputs), **model(inputs)}
    masked_lm = keras.ops.log_softmax(found["masked_lm_logits"])
    found["masked_lm_log_probs"] = keras.ops.reshape(masked_lm, (-1, masked_lm.shape[-1]))
    found["next_sentence_log_probs"] = keras.ops.log_softmax(found["next_sentence_logits"])
    names = ("sequence_output", "pooled_output", "masked_lm_log_probs", "next_sentence_log_probs")
    for name in names:
        np.testing.assert_allclose(np.asarray(found[name]), golden[name], atol=1e-5, err_msg=name)


def test_public_checkpoint_matches_outputs_of_googles_code(released):
    checkpoint = open_checkpoint(released)
    assert checkpoint.config.hidden_act == "gelu_new"  # Google's "gelu" is the tanh variant.
    assert checkpoint.do_lower_case
    assert len(checkpoint.vocab) == 15
    model = BertPretrainer(checkpoint.config)
    report = checkpoint.load_into(model)
    assert (len(report.loaded), report.new, report.ignored, report.skipped) == (46, (), (), 93)
    assert "93 optimizer slots and counters skipped" in str(report)
    golden = np.load(GOLDEN / "checkpoint_google.npz")
    assert_same_outputs(model, golden)
    # Google's code loaded the same weights by the same names.
    assert sorted(map(GoogleWeights.name, report.loaded)) == golden["names"].tolist()


@pytest.mark.parametrize(
    ("make", "scope", "units"),
    [
        (lambda config: BertClassifier(config, 3), "", 3),  # Names of run_classifier.
        (BertSpanLabeler, "cls/squad/", 2),  # Names of run_squad.
    ],
)
def test_googles_fine_tuned_heads_load(written, make, scope, units):
    path, _ = written
    kernel, bias = np.ones([units, 8], np.float32) * [[i] for i in range(units)], np.arange(units)
    head = {f"{scope}output_weights": kernel, f"{scope}output_bias": bias.astype(np.float32)}
    rewrite(
        path / "bert_model.ckpt",
        lambda values: (
            {n: v for n, v in values.items() if n.startswith("bert/")}
            | {name: value.astype(np.float32) for name, value in head.items()}
        ),
    )
    checkpoint = open_checkpoint(path)
    model = make(checkpoint.config)
    report = checkpoint.load_into(model)
    assert (report.new, report.ignored) == ((), ())
    assert np.array_equal(model.weights[-2], kernel.T)
    assert np.array_equal(model.weights[-1], bias)


def test_newest_checkpoint_of_a_training_directory_is_opened(written):
    path, _ = written
    (path / "checkpoint").write_bytes(b"\xff\xfe\x00model_checkpoint_path")  # Ignored.
    assert open_checkpoint(path).vocab
    for step in (10, 20):
        for file in path.glob("bert_model.ckpt.*"):
            shutil.copy(file, path / file.name.replace("bert_model.ckpt", f"model.ckpt-{step}"))
    (path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')
    checkpoint = open_checkpoint(path)
    report = checkpoint.load_into(BertPretrainer(checkpoint.config))
    assert report.source == str(path / "model.ckpt-20")
    (path / "checkpoint").unlink()
    with pytest.raises(
        InputError, match=r"several checkpoints \(.*ckpt-10, model\.ckpt-20\); expected"
    ):
        open_checkpoint(path)


def test_missing_config_is_rejected_with_the_remedy(written):
    path, _ = written
    (path / "bert_config.json").unlink()
    with pytest.raises(
        InputError, match=r"has no bert_config\.json; expected it next to the weights"
    ):
        open_checkpoint(path)


def test_damaged_and_other_checkpoints_are_rejected(written):
    path, _ = written
    config = open_checkpoint(path).config
    (path / "bert_model.ckpt.data-00000-of-00001").write_bytes(b"truncated")
    with pytest.raises(InputError, match=r"bert_model\.ckpt: .*cannot be read|not a valid TF1"):
        open_checkpoint(path).load_into(BertPretrainer(config))
    (path / "bert_model.ckpt.index").write_bytes(b"truncated")
    with pytest.raises(InputError, match="not a valid TF1 checkpoint"):
        open_checkpoint(path).load_into(BertPretrainer(config))
    tf.train.Checkpoint(a=tf.Variable(1.0)).write(str(path / "bert_model.ckpt"))
    with pytest.raises(InputError, match="a TF2 object checkpoint; expected a TF1 checkpoint"):
        open_checkpoint(path).load_into(BertPretrainer(config))
