"""ONNX files: onnxruntime computes the same outputs as the Keras model."""

import keras
import numpy as np
import pytest

from keras_bert.config import HIDDEN_ACTS, BertConfig
from keras_bert.errors import InputError
from keras_bert.models import (
    BertClassifier,
    BertEncoder,
    BertPretrainer,
    BertSpanLabeler,
    BertTokenClassifier,
)

onnx = pytest.importorskip("onnx", reason="not installed: pip install 'keras-bert-pipeline[onnx]'")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="not installed: pip install 'keras-bert-pipeline[onnx]'"
)

from keras_bert.export import onnx as onnx_export  # noqa: E402
from keras_bert.export.onnx import write_onnx  # noqa: E402

MODELS = {
    "encoder": BertEncoder,
    "classifier": lambda config: BertClassifier(config, num_labels=3),
    "token_classifier": lambda config: BertTokenClassifier(config, num_labels=3),
    "span_labeler": BertSpanLabeler,
    "pretrainer": BertPretrainer,
}
LONGEST = 16  # Number of positions.


def make_model(name: str, hidden_act: str = "gelu") -> keras.Model:
    sizes = {"max_position_embeddings": LONGEST, "initializer_range": 0.2}
    config = BertConfig(60, 32, 2, 4, 64, hidden_act=hidden_act, **sizes)
    keras.utils.set_random_seed(0)  # A fixed seed: int8's loss depends on it.
    model = MODELS[name](config)
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:  # Nonzero biases and gammas.
        if len(weight.shape) == 1:
            weight.assign(weight + rng.normal(0, 0.3, weight.shape))
    return model


def make_batch(model: keras.Model, rows: int, length: int) -> dict[str, np.ndarray]:
    """Returns padded inputs; the first row has no padding."""
    rng = np.random.default_rng(rows)
    lengths = rng.integers(1, length + 1, [rows, 1])
    lengths[0] = length
    batch = {
        "input_ids": rng.integers(0, 60, [rows, length]),
        "input_mask": np.arange(length) < lengths,
        "segment_ids": rng.integers(0, 2, [rows, length]),
    }
    if isinstance(model, BertPretrainer):
        batch["masked_lm_positions"] = rng.integers(0, length, [rows, 3])
    return {name: value.astype(np.int32) for name, value in batch.items()}


def run(path, batch):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    batch = {name: value.astype(np.int64) for name, value in batch.items()}
    return dict(zip(names, session.run(names, batch), strict=True))


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1")  # For one token.
@pytest.mark.parametrize(
    ("name", "hidden_act"),
    [*((name, "gelu") for name in MODELS), *(("pretrainer", act) for act in HIDDEN_ACTS[1:])],
)
def test_every_model_matches_keras_at_any_batch_size_and_length(name, hidden_act, tmp_path):
    model = make_model(name, hidden_act)
    write_onnx(model, tmp_path / "model.onnx")
    for rows, length in ((1, 1), (3, LONGEST), (4, 7)):
        batch = make_batch(model, rows, length)
        outputs = run(tmp_path / "model.onnx", batch)
        expected = model(batch, training=False)
        assert outputs.keys() == expected.keys()
        for output, value in expected.items():
            # The two variants of gelu differ by up to 4.7e-4.
            np.testing.assert_allclose(outputs[output], np.asarray(value), atol=1e-5, rtol=0)
    with pytest.raises(Exception, match=r"broadcast"):
        run(tmp_path / "model.onnx", make_batch(model, 2, LONGEST + 1))


@pytest.mark.parametrize("name", MODELS)
def test_files_are_valid_and_int8_has_one_byte_per_weight_and_stays_close(name, tmp_path):
    model = make_model(name)
    for int8 in (False, True):
        path = tmp_path / f"{int8}.onnx"
        write_onnx(model, path, int8=int8)
        onnx.checker.check_model(path, full_check=True)
        proto = onnx.load_model(path)
        assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 20)]
        assert {node.domain for node in proto.graph.node} == {""}
    large = [
        weight.data_type
        for weight in proto.graph.initializer
        if np.prod(weight.dims) > 600  # Kernels and word embeddings; the others stay float.
    ]
    assert len(large) >= 2 * 6 + 1
    assert set(large) <= {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    batch = make_batch(model, 4, LONGEST)
    outputs = run(path, batch)
    for output, expected in model(batch, training=False).items():
        assert np.corrcoef(outputs[output].ravel(), np.ravel(expected))[0, 1] > 0.99


@pytest.mark.parametrize("name", ["classifier", "pretrainer"])
def test_outlier_channels_cost_int8_little_accuracy(name, tmp_path, monkeypatch):
    model = make_model(name)
    for weight in model.trainable_variables:
        if weight.path.endswith("LayerNorm/gamma"):
            weight.assign(np.where(np.arange(32) == 5, 40.0, weight))
    batch, errors = make_batch(model, 16, LONGEST), {}
    for file, max_copies in (("split.onnx", onnx_export._MAX_COPIES), ("whole.onnx", 1)):
        monkeypatch.setattr(onnx_export, "_MAX_COPIES", max_copies)
        write_onnx(model, tmp_path / file, int8=True)
        onnx.checker.check_model(tmp_path / file, full_check=True)
        outputs = run(tmp_path / file, batch)
        errors[file] = [
            np.sqrt(np.mean((outputs[output] - np.asarray(value)) ** 2))
            for output, value in model(batch, training=False).items()
        ]
    assert (np.array(errors["split.onnx"]) < 0.7 * np.array(errors["whole.onnx"])).all()


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1")  # For one token.
@pytest.mark.parametrize("hidden_size", [1, 2, 3])
@pytest.mark.parametrize("factor", [0, 1])
def test_int8_of_tiny_networks_and_of_inputs_that_are_zero(hidden_size, factor, tmp_path):
    config = BertConfig(5, hidden_size, 1, 1, 1, max_position_embeddings=1, type_vocab_size=2)
    model = BertClassifier(config, num_labels=2)
    for weight in model.trainable_variables:
        weight.assign(factor * weight)
    write_onnx(model, tmp_path / "model.onnx", int8=True)
    batch = make_batch(model, 2, 1)
    batch["input_ids"] %= 5
    expected = model(batch, training=False)["logits"]
    logits = run(tmp_path / "model.onnx", batch)["logits"]
    np.testing.assert_allclose(logits, np.asarray(expected), atol=0.01)


def test_too_large_model_is_rejected_and_existing_file_is_kept(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_text("earlier")
    monkeypatch.setattr(onnx_export, "_MAX_BYTES", 1000)
    with pytest.raises(InputError, match=r"model\.onnx: the weights take .* at most 2 GiB"):
        write_onnx(make_model("classifier"), tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert (tmp_path / "model.onnx").read_text() == "earlier"
