"""LiteRT files: the LiteRT runtime computes the same outputs as the Keras model."""

import numpy as np
import pytest

from keras_bert.common.errors import InputError
from keras_bert.config import HIDDEN_ACTS
from keras_bert.serving import litert_format
from keras_bert.serving.litert_format import write_litert

runtime = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="not installed: pip install 'keras-bert-pipeline[litert]'"
)

LONGEST = 16  # Number of positions in `make_model`.


def signature(path):
    return runtime.Interpreter(str(path)).get_signature_runner("serving_default")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1")  # For one token.
def test_every_model_matches_keras_at_any_batch_size_and_length(
    model_name, make_model, make_batch, tmp_path
):
    model = make_model(model_name)
    write_litert(model, tmp_path / "model.tflite")
    run = signature(tmp_path / "model.tflite")
    for rows, length in ((1, 1), (3, LONGEST), (4, 7)):
        batch = make_batch(model, rows, length)
        outputs, expected = run(**batch), model(batch, training=False)
        assert outputs.keys() == expected.keys()
        for output, value in expected.items():
            np.testing.assert_allclose(outputs[output], np.asarray(value), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("hidden_act", HIDDEN_ACTS)
def test_every_activation_matches_keras(make_model, make_batch, hidden_act, tmp_path):
    model = make_model("pretrainer", hidden_act)
    write_litert(model, tmp_path / "model.tflite")
    batch = make_batch(model, 3, 7)
    outputs = signature(tmp_path / "model.tflite")(**batch)
    for output, value in model(batch, training=False).items():
        # The two variants of gelu differ by up to 4.7e-4.
        np.testing.assert_allclose(outputs[output], np.asarray(value), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_int8_file_is_smaller_and_outputs_stay_close(model_name, make_model, make_batch, tmp_path):
    model = make_model(model_name)
    write_litert(model, tmp_path / "float32.tflite")
    write_litert(model, tmp_path / "int8.tflite", int8=True)
    sizes = [(tmp_path / f"{kind}.tflite").stat().st_size for kind in ("float32", "int8")]
    assert sizes[1] < 0.6 * sizes[0]  # Operators and small weights are the same size in both.
    batch = make_batch(model, 4, LONGEST)
    outputs = signature(tmp_path / "int8.tflite")(**batch)
    for output, expected in model(batch, training=False).items():
        assert np.corrcoef(outputs[output].ravel(), np.ravel(expected))[0, 1] > 0.99


@pytest.mark.slow
def test_too_long_sequences_are_rejected(make_model, make_batch, tmp_path):
    model = make_model("encoder")
    write_litert(model, tmp_path / "model.tflite")
    with pytest.raises(RuntimeError):
        signature(tmp_path / "model.tflite")(**make_batch(model, 2, LONGEST + 1))


def test_too_large_model_is_rejected_and_existing_file_is_kept(make_model, tmp_path, monkeypatch):
    (tmp_path / "model.tflite").write_text("earlier")
    monkeypatch.setattr(litert_format, "_MAX_BYTES", 1000)
    with pytest.raises(InputError, match=r"model\.tflite: the weights take .* at most 2 GiB"):
        write_litert(make_model("classifier"), tmp_path / "model.tflite")
    assert [path.name for path in tmp_path.iterdir()] == ["model.tflite"]
    assert (tmp_path / "model.tflite").read_text() == "earlier"
