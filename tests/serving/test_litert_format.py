"""LiteRT files: its runtime computes from them what the model computes, for every model."""

import numpy as np
import pytest

from keras_bert.config import HIDDEN_ACTS, BertConfig
from keras_bert.encoder import BertEncoder
from keras_bert.errors import InputError
from keras_bert.models import (
    BertClassifier,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)
from keras_bert.serving import litert_format
from keras_bert.serving.litert_format import write_litert

runtime = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="not installed: pip install -e '.[litert]'"
)

MODELS = {
    "encoder": BertEncoder,
    "classifier": lambda config: BertClassifier(config, num_labels=3),
    "token_classifier": lambda config: BertTokenClassifier(config, num_labels=3),
    "span_labeler": BertSpanLabeler,
    "pretrainer": BertPretrainer,
}
LONGEST = 16


def make_model(name, hidden_act="gelu"):
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LONGEST,
        initializer_range=0.2,
        hidden_act=hidden_act,
    )
    model = MODELS[name](config)
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:  # Biases and gammas that show where they are missing.
        if len(weight.shape) == 1:
            weight.assign(weight + rng.normal(0, 0.3, weight.shape))
    return model


def make_batch(model, rows, length):
    rng = np.random.default_rng(rows)
    real = rng.integers(1, length + 1, [rows, 1])
    real[0] = length
    batch = {
        "input_ids": rng.integers(0, 60, [rows, length]),
        "input_mask": np.arange(length) < real,
        "segment_ids": rng.integers(0, 2, [rows, length]),
    }
    if isinstance(model, BertPretrainer):
        batch["masked_lm_positions"] = rng.integers(0, length, [rows, 3])
    return {name: value.astype(np.int32) for name, value in batch.items()}


def signature(path):
    return runtime.Interpreter(str(path)).get_signature_runner("serving_default")


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1")  # Of one piece.
@pytest.mark.parametrize("name", MODELS)
def test_every_model_agrees_at_any_batch_size_and_length(name, tmp_path):
    model = make_model(name)
    write_litert(model, tmp_path / "model.tflite")
    run = signature(tmp_path / "model.tflite")
    for rows, length in ((1, 1), (3, LONGEST), (4, 7)):
        batch = make_batch(model, rows, length)
        outputs, expected = run(**batch), model(batch, training=False)
        assert outputs.keys() == expected.keys()
        for output, value in expected.items():
            np.testing.assert_allclose(outputs[output], np.asarray(value), atol=1e-5, rtol=0)


@pytest.mark.parametrize("hidden_act", HIDDEN_ACTS)
def test_every_activation_agrees(hidden_act, tmp_path):
    model = make_model("pretrainer", hidden_act)
    write_litert(model, tmp_path / "model.tflite")
    batch = make_batch(model, 3, 7)
    outputs = signature(tmp_path / "model.tflite")(**batch)
    for output, value in model(batch, training=False).items():
        # The two forms of gelu differ by up to 4.7e-4.
        np.testing.assert_allclose(outputs[output], np.asarray(value), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_int8_takes_less_than_half_the_room_and_stays_close(name, tmp_path):
    model = make_model(name)
    write_litert(model, tmp_path / "float32.tflite")
    write_litert(model, tmp_path / "int8.tflite", int8=True)
    sizes = [(tmp_path / f"{kind}.tflite").stat().st_size for kind in ("float32", "int8")]
    assert sizes[1] < 0.6 * sizes[0]  # Operators and the small weights take the same in both.
    batch = make_batch(model, 4, LONGEST)
    outputs = signature(tmp_path / "int8.tflite")(**batch)
    for output, expected in model(batch, training=False).items():
        assert np.corrcoef(outputs[output].ravel(), np.ravel(expected))[0, 1] > 0.99


def test_sequences_that_are_too_long_are_refused(tmp_path):
    model = make_model("encoder")
    write_litert(model, tmp_path / "model.tflite")
    with pytest.raises(RuntimeError):
        signature(tmp_path / "model.tflite")(**make_batch(model, 2, LONGEST + 1))


def test_more_than_a_file_holds_is_refused_and_an_earlier_file_stays(tmp_path, monkeypatch):
    (tmp_path / "model.tflite").write_text("earlier")
    monkeypatch.setattr(litert_format, "_MOST_BYTES", 1000)
    with pytest.raises(InputError, match=r"model\.tflite: the weights take .* at most the 2 GiB"):
        write_litert(make_model("classifier"), tmp_path / "model.tflite")
    assert [path.name for path in tmp_path.iterdir()] == ["model.tflite"]
    assert (tmp_path / "model.tflite").read_text() == "earlier"
