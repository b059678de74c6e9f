"""ONNX files: onnxruntime computes the same outputs as the Keras model."""

import numpy as np
import pytest

from keras_bert.config import HIDDEN_ACTS
from keras_bert.errors import InputError

onnx = pytest.importorskip("onnx", reason="not installed: pip install 'keras-bert-pipeline[onnx]'")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="not installed: pip install 'keras-bert-pipeline[onnx]'"
)

from keras_bert.export import onnx as onnx_export  # noqa: E402
from keras_bert.export.onnx import write_onnx  # noqa: E402

LONGEST = 16  # Number of positions in `make_model`.


def run(path, batch):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    batch = {name: value.astype(np.int64) for name, value in batch.items()}
    return dict(zip(names, session.run(None, batch), strict=True))


def assert_agrees(outputs, model, batch, tolerance):
    expected = model(batch, training=False)
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert outputs[name].dtype == np.float32
        np.testing.assert_allclose(outputs[name], np.asarray(value), atol=tolerance, rtol=0)


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1")  # For one token.
def test_every_model_matches_keras_at_any_batch_size_and_length(
    model_name, make_model, make_batch, tmp_path
):
    model = make_model(model_name)
    write_onnx(model, tmp_path / "model.onnx")
    for rows, length in ((1, 1), (3, LONGEST), (4, 7)):
        batch = make_batch(model, rows, length)
        assert_agrees(run(tmp_path / "model.onnx", batch), model, batch, 1e-5)


@pytest.mark.parametrize("hidden_act", HIDDEN_ACTS)
def test_every_activation_matches_keras(make_model, make_batch, hidden_act, tmp_path):
    model = make_model("pretrainer", hidden_act)
    write_onnx(model, tmp_path / "model.onnx")
    batch = make_batch(model, 3, 7)
    # The two variants of gelu differ by up to 4.7e-4.
    assert_agrees(run(tmp_path / "model.onnx", batch), model, batch, 1e-5)


@pytest.mark.parametrize("int8", [False, True])
def test_file_is_valid_and_uses_standard_operators(model_name, make_model, int8, tmp_path):
    write_onnx(make_model(model_name), tmp_path / "model.onnx", int8=int8)
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    proto = onnx.load_model(tmp_path / "model.onnx")
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 20)]
    assert {node.domain for node in proto.graph.node} == {""}


def test_int8_stores_one_byte_per_weight_and_stays_close(
    model_name, make_model, make_batch, tmp_path
):
    model = make_model(model_name)
    write_onnx(model, tmp_path / "model.onnx", int8=True)
    large = [
        (weight.name, weight.data_type)
        for weight in onnx.load_model(tmp_path / "model.onnx").graph.initializer
        if np.prod(weight.dims) > 600  # Kernels and word embeddings; the others stay float.
    ]
    assert len(large) >= 2 * 6 + 1
    assert {kind for _, kind in large} <= {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    batch = make_batch(model, 4, LONGEST)
    outputs = run(tmp_path / "model.onnx", batch)
    for output, expected in model(batch, training=False).items():
        assert np.corrcoef(outputs[output].ravel(), np.ravel(expected))[0, 1] > 0.99


def test_too_long_sequences_are_rejected(make_model, make_batch, tmp_path):
    model = make_model("encoder")
    write_onnx(model, tmp_path / "model.onnx")
    with pytest.raises(Exception, match=r"broadcast"):
        run(tmp_path / "model.onnx", make_batch(model, 2, LONGEST + 1))


def test_too_large_model_is_rejected_and_existing_file_is_kept(make_model, tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_text("earlier")
    monkeypatch.setattr(onnx_export, "_MAX_BYTES", 1000)
    with pytest.raises(InputError, match=r"model\.onnx: the weights take .* at most 2 GiB"):
        write_onnx(make_model("classifier"), tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "earlier"
