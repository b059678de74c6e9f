"""Engines give the SavedModel's answers, or an error names the file and the remedy."""

import importlib.util
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import keras_bert
from keras_bert.errors import InputError
from keras_bert.export import engine_network
from keras_bert.export.engine_network import SIGNATURE, EngineFunction, different
from keras_bert.export.engines import PRECISIONS, Engine, check_engine
from keras_bert.tasks import text_processor
from keras_bert.tasks.classification.task import TextClassifier
from tests import processes
from tests.export.conftest import INSTALLED, make_task

onnx = pytest.importorskip("onnx", reason="not installed: pip install 'keras-bert-pipeline[onnx]'")

from keras_bert.export import onnx as onnx_export  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # Exports models of every task.
    pytest.mark.skipif(not INSTALLED, reason="no engine is installed"),
]
LOWER = [
    (engine, precision)
    for engine in INSTALLED
    for precision in PRECISIONS[engine]
    if precision != "float32"
]


# --- answers ---


@pytest.mark.parametrize("engine", INSTALLED)
@pytest.mark.parametrize("task", ["pair", "question_answering", "ner", "fill_mask", "embedding"])
def test_float32_gives_the_answers_of_the_saved_model(task, engine, export):
    exported = export(task)
    opened = exported.open(engine)
    assert opened.functions.keys() == exported.requests.keys()
    for name, request in exported.requests.items():
        # The second text has no mask.
        for rows in (slice(None), slice(0, 1), slice(1, 2), slice(0, 0)):
            some = {key: value[rows] for key, value in request.items()}
            answers = opened.functions[name](**some)
            expected = exported.call(name, some)
            assert answers.keys() == expected.keys()
            for key, value in expected.items():
                assert answers[key].dtype == value.dtype
                if value.dtype.kind == "f":
                    np.testing.assert_allclose(answers[key], value, atol=2e-4, err_msg=key)
                else:
                    np.testing.assert_array_equal(answers[key], value, key)


@pytest.mark.parametrize(("engine", "precision"), LOWER)
@pytest.mark.parametrize("task", ["pair", "ner", "fill_mask", "embedding"])
def test_other_precisions_are_close(task, engine, precision, export):
    exported = export(task)
    opened = exported.open(engine, precision)
    assert opened.precision == precision
    name = {"ner": "token_ids", "embedding": "token_ids"}.get(task, "serving_default")
    request = exported.requests[name]
    answers = opened.functions[name](**request)
    key = {"fill_mask": "scores", "embedding": "mean"}.get(task, "logits")
    expected = exported.call(name, request)[key]
    assert answers[key].shape == expected.shape
    error = np.linalg.norm(answers[key] - expected) / np.linalg.norm(expected)
    assert error < {"bfloat16": 0.05, "int8": 0.2}[precision]


@pytest.mark.parametrize("engine", INSTALLED[:1])
def test_task_objects_predict_and_tag_on_an_engine(engine, export):
    folder = export("ner").folder
    texts, words = ["The cat sat.", "", "on a mat"], [["The", "cat"], ["who", "sat", "?"]]
    expected = keras_bert.load(folder)
    tagger = keras_bert.load(folder, engine=engine)
    assert tagger.engine.name == engine
    for inputs in (texts, words):
        answers, saved = tagger.predict(inputs), expected.predict(inputs)
        assert answers.keys() == saved.keys()
        for key in saved.keys() - {"scores"}:
            assert [list(row) for row in answers[key]] == [list(row) for row in saved[key]]


@pytest.mark.parametrize("engine", INSTALLED)
def test_several_threads_get_their_own_answers(engine, export):
    exported = export("pair")
    function = exported.open(engine).functions["token_ids"]
    request = exported.requests["token_ids"]
    expected = exported.call("token_ids", request)["logits"]

    def is_wrong(row: int) -> bool:
        one = {key: value[row : row + 2] for key, value in request.items()}
        return np.abs(function(**one)["logits"] - expected[row : row + 2]).max() > 1e-4

    with ThreadPoolExecutor(4) as threads:
        assert not any(threads.map(is_wrong, [*range(4)] * 20))


PARTS = "the Cat cat sat mät ##a [MASK] 王 . , \u0301 \0 Σ σ".encode().split(b" ")
PARTS += [b"xyz" * 40, b"\xff", *[b" "] * 3, b"  ", b"\t", b"\x0b", "\xa0".encode()]


@pytest.mark.parametrize(("cache_bytes", "padded"), [(1 << 25, 1 << 20), (2000, 20)])
@pytest.mark.parametrize("task", ["pair", "multi_label", "reranking"])
def test_steps_without_tensorflow_are_those_of_the_saved_model(
    task, cache_bytes, padded, export, monkeypatch
):
    monkeypatch.setattr(text_processor, "_CACHE_BYTES", cache_bytes)
    monkeypatch.setattr(text_processor, "_PADDED_VALUES", padded)
    _, loaded, info, _ = export(task)
    function = EngineFunction(loaded, SIGNATURE, None)
    function.steps = TextClassifier.array_steps(loaded, info)
    rng = np.random.default_rng(0)
    for count in (0, *[1] * 30, 40):
        inputs = {}
        for name in function.input_names:
            parts = [rng.integers(len(PARTS), size=rng.integers(30)) for _ in range(count)]
            texts = [b"".join(PARTS[part] for part in text) for text in parts]
            inputs[name] = np.array(texts, object)
        size = [count, 1 if task == "reranking" else 3]
        outputs = {"logits": rng.normal(size=size).astype(np.float32)}
        rows, without = function.preprocess(inputs)
        expected, tensors = function.preprocess_in_graph(inputs)
        answers, of_graph = (function.decode(outputs, x) for x in (without, tensors))
        assert answers.keys() == of_graph.keys()
        pairs = [*zip(rows, expected, strict=True)]
        for value, right in [*pairs, *((answers[name], of_graph[name]) for name in answers)]:
            assert (value.dtype, value.shape) == (right.dtype, right.shape)
            if value.dtype.kind == "f":
                np.testing.assert_allclose(value, right, rtol=1e-5)
            else:
                np.testing.assert_array_equal(value, right)


FREED_THEN_TERMINATED = """
import gc, os, signal, sys
import keras_bert
task = keras_bert.load(sys.argv[1], engine=sys.argv[2])
task.predict(["one text"])
del task
gc.collect()
received = []
signal.signal(signal.SIGTERM, lambda *_: received.append(1))
os.kill(os.getpid(), signal.SIGTERM)
print(len(received))
"""


def test_sigterm_is_handled_after_openvino_is_freed(export):
    pytest.importorskip("openvino", reason="pip install 'keras-bert-pipeline[openvino]'")
    folder = export("embedding").folder
    done = processes.run(["-c", FREED_THEN_TERMINATED, folder, "openvino"])
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


# --- comparison with the SavedModel ---


@pytest.mark.parametrize("options", [{"format": "onnx"}, {"engines": ("onnxruntime",)}])
def test_graph_with_other_outputs_than_the_model_is_not_exported(options, monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_export._Graph, "layer_norm", lambda graph, x, path, epsilon: x)
    with pytest.raises(InputError, match=r"onnx: the outputs of the graph are not .*: logits diff"):
        make_task("pair").export(tmp_path / "1", **options)
    assert not list(tmp_path.iterdir())


def test_engine_with_other_answers_is_rejected(export, monkeypatch):
    monkeypatch.setitem(engine_network.TOLERANCE, "float32", 0.0)
    with pytest.raises(InputError, match=r"the answers of .* are not those of the SavedModel: log"):
        export("pair").open(INSTALLED[0])


# --- opening ---


@pytest.fixture
def copy(export, tmp_path):
    return shutil.copytree(export("pair").folder, tmp_path / "1")


def test_engine_is_the_first_of_the_export_that_has_the_precision(export):
    folder, loaded, info, _ = export("pair")

    def opened(precision, *names):
        changed = {**info, "engines": {**info["engines"], "names": names}}
        return Engine(folder, loaded, changed, precision=precision).name

    assert opened("", *INSTALLED) == INSTALLED[0]
    assert opened("", *reversed(INSTALLED)) == INSTALLED[-1]
    assert opened("") == "tensorflow"
    with pytest.raises(InputError, match=r"a SavedModel in float32; expected int8 .* tensorflow"):
        opened("int8", "openvino")
    if "onnxruntime" in INSTALLED:
        assert opened("int8", "openvino", "onnxruntime") == "onnxruntime"


def test_bfloat16_export_runs_in_its_own_precision(export):
    opened = export("multi_label").open("openvino" if "openvino" in INSTALLED else "tensorflow")
    assert opened.precision == "bfloat16"


def test_export_without_engines_runs_on_tensorflow(export):
    folder, loaded, info, _ = export("pair")
    info = {key: value for key, value in info.items() if key != "engines"}
    assert Engine(folder, loaded, info).name == "tensorflow"
    for name in INSTALLED:
        message = rf"network\.onnx: no such file; expected an .* made with engines={name}$"
        with pytest.raises(InputError, match=message):
            Engine(folder, loaded, info, name)


def test_missing_file(copy):
    (copy / "engines" / "network_int8.onnx").unlink()
    with pytest.raises(
        InputError, match=r"int8\.onnx: no such file; .*engines=onnxruntime and int8$"
    ):
        keras_bert.load(copy, engine="onnxruntime", precision="int8")


@pytest.mark.parametrize("engine", INSTALLED)
@pytest.mark.parametrize("content", [b"not ONNX", None])
def test_damaged_file(copy, engine, content):
    path = copy / "engines" / "network.onnx"
    path.write_bytes(path.read_bytes()[:-1000] if content is None else content)
    message = r"network\.onnx: \w+ in float32 failed with .*; use the engine tensorflow"
    with pytest.raises(InputError, match=message):
        keras_bert.load(copy, engine=engine)


@pytest.mark.parametrize(("engine", "extra"), [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_missing_package_names_the_extra(export, monkeypatch, engine, extra):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == engine else find(name, *a)
    )
    message = rf"engine={engine}: .* not installed; .*-pipeline\[{extra}\]', or use the engine ten"
    with pytest.raises(InputError, match=message):
        export("pair").open(engine)


@pytest.mark.parametrize(
    ("values", "precision", "message"),
    [
        ([b"a", b"a"], "float32", "50% of x are equal; expected at least 100% in"),
        ([b"a"], "float32", "x has the shape (1,); expected (2,)"),
        ([b"a"], "int8", None),
        ([b"a", b"b"], "float32", None),
        ([np.nan, 1.0], "int8", "x differs by nan; expected at most 0.3 in int8"),
    ],
)
def test_different_values_and_shapes_are_noticed(values, precision, message):
    expected = [1.0, 1.0] if np.nan in values else [b"a", b"b"]
    problem = different({"x": np.array(values)}, {"x": np.array(expected)}, precision)
    assert problem == message if message is None else problem.startswith(message)


@pytest.mark.parametrize(
    ("engine", "precision", "message"),
    [
        ("", "float16", r"precision='float16': expected one of float32, bfloat16, int8"),
        ("onnxruntime", "bfloat16", r"found precision bfloat16; .*needs the engine openvino"),
        ("openvino", "int8", r"found precision int8; .*needs the engine onnxruntime"),
        ("tensorflow", "int8", r"found precision int8; expected one of float32, bfloat16; .*onnxr"),
    ],
)
def test_unknown_values_are_rejected(engine, precision, message):
    with pytest.raises(InputError, match=message):
        check_engine(engine, precision)
