"""Which engine opens an export, and the errors of engines that cannot."""

import importlib.util
import json
import re
import shutil

import pytest
import tensorflow as tf

import keras_bert
from keras_bert.errors import InputError
from keras_bert.export import engine_network as network
from keras_bert.export.engines import (
    EngineRequest,
    NetworkSpec,
    open_engine,
)
from tests.export.conftest import make_task
from tests.export.engines.conftest import INSTALLED

onnx = pytest.importorskip("onnx", reason="not installed: pip install 'keras-bert-pipeline[onnx]'")

from keras_bert.export import onnx as onnx_export  # noqa: E402

pytestmark = pytest.mark.skipif(not INSTALLED, reason="no engine is installed")


@pytest.fixture(scope="module")
def loaded(export_with_engines):
    folder = export_with_engines("pair")
    return (
        folder,
        tf.saved_model.load(str(folder)),
        json.loads((folder / "export.json").read_text()),
    )


@pytest.fixture
def copy(export_with_engines, tmp_path):
    return shutil.copytree(export_with_engines("pair"), tmp_path / "1")


@pytest.mark.parametrize("options", [{"format": "onnx"}, {"engines": ("onnxruntime",)}])
def test_graph_with_other_outputs_than_the_model_is_not_exported(options, monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_export._Graph, "layer_norm", lambda graph, x, path, epsilon: x)
    with pytest.raises(InputError, match=r"onnx: the outputs of the graph are not .*: logits diff"):
        make_task("pair").export(tmp_path / "1", **options)
    assert not list(tmp_path.iterdir())


def test_given_engine_with_other_answers_is_rejected(loaded, monkeypatch):
    folder, model, info = loaded
    monkeypatch.setitem(network.TOLERANCE, "float32", 0.0)
    with pytest.raises(InputError, match=r"the answers of .* are not those of the SavedModel: log"):
        open_engine(folder, model, info, EngineRequest(INSTALLED[0]))


@pytest.mark.slow
def test_engine_is_the_first_of_the_export_that_has_the_precision(loaded):
    folder, model, info = loaded

    def opened(precision, *names):
        changed = {**info, "engines": {**info["engines"], "names": names}}
        return open_engine(folder, model, changed, EngineRequest(precision=precision)).name

    assert opened("", *INSTALLED) == INSTALLED[0]
    assert opened("", *reversed(INSTALLED)) == INSTALLED[-1]
    assert opened("") == "tensorflow"
    with pytest.raises(InputError, match=r"a SavedModel in float32; expected int8 .* tensorflow"):
        opened("int8", "openvino")
    if "onnxruntime" in INSTALLED:
        assert opened("int8", "openvino", "onnxruntime") == "onnxruntime"


def test_export_without_engines_runs_on_tensorflow(loaded):
    folder, model, info = loaded
    info = {key: value for key, value in info.items() if key != "engines"}
    assert open_engine(folder, model, info, EngineRequest()).name == "tensorflow"
    assert open_engine(folder, model, None, EngineRequest()).name == "tensorflow"
    for name in INSTALLED:
        message = rf"network\.onnx: no such file; expected an .* made with --engines={name}$"
        with pytest.raises(InputError, match=message):
            open_engine(folder, model, info, EngineRequest(name))


def test_missing_file(copy):
    (copy / "engines" / "network_int8.onnx").unlink()
    with pytest.raises(InputError, match=r"int8\.onnx: no such file; .*onnxruntime --int8$"):
        keras_bert.load(copy, engine="onnxruntime", precision="int8")


@pytest.mark.slow
@pytest.mark.parametrize("engine", INSTALLED)
@pytest.mark.parametrize("content", [b"", b"not ONNX", None])
def test_damaged_file(copy, engine, content):
    path = copy / "engines" / "network.onnx"
    path.write_bytes(path.read_bytes()[:-1000] if content is None else content)
    with pytest.raises(
        InputError, match=r"network\.onnx: \w+ in float32 failed with .*; expected a"
    ):
        keras_bert.load(copy, engine=engine)


@pytest.mark.parametrize(("engine", "extra"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_missing_package_names_the_extra(loaded, monkeypatch, engine, extra):
    folder, model, info = loaded
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == engine else find(name, *a)
    )
    message = rf"engine={engine}: .* not installed; .*-pipeline\[{extra}\]', or use --engine=tensor"
    with pytest.raises(InputError, match=message):
        open_engine(folder, model, info, EngineRequest(engine))


@pytest.mark.parametrize(
    ("engine", "precision", "message"),
    [
        ("torch", "", r"engine='torch': expected one of tensorflow, onnxruntime, openvino"),
        ("", "float16", r"precision='float16': expected one of float32, bfloat16, int8"),
        ("onnxruntime", "bfloat16", r"found precision bfloat16; .*needs the engine openvino"),
        ("openvino", "int8", r"found precision int8; .*needs the engine onnxruntime"),
        ("tensorflow", "int8", r"found precision int8; expected one of float32, bfloat16; .*onnxr"),
    ],
)
def test_unknown_values_are_rejected(engine, precision, message):
    with pytest.raises(InputError, match=message):
        EngineRequest(engine, precision)


def test_model_directory_has_no_engines(pretrained):
    with pytest.raises(InputError, match=r"engine='openvino', .* found a model directory"):
        keras_bert.load(pretrained, engine="openvino")


def fail(error: Exception):
    """Returns a function that raises an error."""

    def raise_error(*_, **__):
        raise error

    return raise_error


@pytest.mark.parametrize("error", [RuntimeError("no\nmemory"), ImportError("lib"), KeyError("a")])
def test_any_failure_names_the_file_and_the_remedy(loaded, monkeypatch, error):
    folder, model, info = loaded
    monkeypatch.setattr(network, "open_network", fail(error))
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    message = f"network.onnx: {INSTALLED[0]} in float32 failed with {reason}; expected a network"
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        open_engine(folder, model, info, EngineRequest(INSTALLED[0]))
    assert "use --engine=tensorflow, or export the model again" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_json_keeps_the_order_of_the_outputs():
    spec = NetworkSpec({"scores": "mask", "b": "row", "a": "token"}, 5, 103, True)
    content = json.loads(json.dumps(spec.to_json(), sort_keys=True))
    found = NetworkSpec.from_json(content, "export.json")
    assert found == spec
    assert list(found.per) == ["scores", "b", "a"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        {},
        {"per": []},
        {"per": [["logits", "column"]]},
        {"per": [["logits", "row"]], "unknown": 1},
        {"per": [["scores", "mask"]], "top_k": 5},
    ],
)
def test_invalid_content_is_rejected(content):
    with pytest.raises(InputError, match=r"^export\.json: found .* as the description of the net"):
        NetworkSpec.from_json(content, "export.json")
