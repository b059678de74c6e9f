"""Every task and signature gives the SavedModel's answers on every installed engine."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import keras_bert
from keras_bert.export.engines import PRECISIONS, EngineRequest, open_engine
from tests.export.conftest import TASKS
from tests.export.engines.conftest import INSTALLED

CASES = [
    (engine, precision)
    for engine in INSTALLED
    for precision in PRECISIONS[engine]
    if precision != "float32"
]


def open_export(folder, engine, precision):
    info = json.loads((folder / "export.json").read_text())
    loaded = tf.saved_model.load(str(folder))
    return info, loaded, open_engine(folder, loaded, info, EngineRequest(engine, precision))


@pytest.mark.slow
@pytest.mark.parametrize("engine", INSTALLED)
@pytest.mark.parametrize("task", TASKS)
def test_float32_gives_the_answers_of_the_saved_model(
    task, engine, export_with_engines, requests_of
):
    info, loaded, opened = open_export(export_with_engines(task), engine, "float32")
    assert opened.functions.keys() == loaded.signatures.keys()
    for name, request in requests_of(info).items():
        # The second text has no mask.
        for rows in (slice(None), slice(0, 1), slice(1, 2), slice(0, 0)):
            some = {key: value[rows] for key, value in request.items()}
            found, expected = opened.functions[name](**some), loaded.signatures[name](**some)
            assert found.keys() == expected.keys()
            for key, value in expected.items():
                assert found[key].dtype == value.dtype
                if value.dtype.is_floating:
                    np.testing.assert_allclose(found[key], value, atol=2e-4, err_msg=key)
                else:
                    np.testing.assert_array_equal(found[key], value, key)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "precision"), CASES)
@pytest.mark.parametrize("task", ["pair", "ner", "fill_mask", "embedding"])
def test_other_precisions_are_close(task, engine, precision, export_with_engines, requests_of):
    info, loaded, opened = open_export(export_with_engines(task), engine, precision)
    assert opened.precision == precision
    name = {"ner": "token_ids", "embedding": "token_ids"}.get(task, "serving_default")
    request = requests_of(info)[name]
    found, expected = opened.functions[name](**request), loaded.signatures[name](**request)
    key = {"fill_mask": "scores", "embedding": "mean"}.get(task, "logits")
    assert found[key].shape == expected[key].shape
    error = np.linalg.norm(found[key] - expected[key]) / np.linalg.norm(expected[key])
    assert error < {"bfloat16": 0.05, "int8": 0.2}[precision]


@pytest.mark.slow
@pytest.mark.parametrize("engine", INSTALLED)
def test_task_objects_predict_and_tag_on_an_engine(engine, export_with_engines):
    folder = export_with_engines("ner")
    texts, words = ["The cat sat.", "", "on a mat"], [["The", "cat"], ["who", "sat", "?"]]
    expected = keras_bert.load(folder)
    tagger = keras_bert.load(folder, engine=engine)
    assert tagger.engine.name == engine
    for inputs in (texts, words):
        found, wanted = tagger.predict(inputs), expected.predict(inputs)
        assert found.keys() == wanted.keys()
        for key in wanted.keys() - {"scores"}:
            assert [list(row) for row in found[key]] == [list(row) for row in wanted[key]]


@pytest.mark.slow
def test_bfloat16_export_is_compared_in_its_own_precision(export_with_engines, requests_of):
    if "openvino" not in INSTALLED:
        pytest.skip("not installed: pip install 'keras-bert-pipeline[openvino]'")
    folder = export_with_engines("pair", "bfloat16")
    info, _, opened = open_export(folder, "openvino", "")
    assert opened.precision == info["compute_type"] == "bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize("engine", INSTALLED)
def test_several_threads_get_their_own_answers(engine, export_with_engines, requests_of):
    info, loaded, opened = open_export(export_with_engines("pair"), engine, "float32")
    request = requests_of(info)["token_ids"]
    expected = loaded.signatures["token_ids"](**request)["logits"].numpy()
    wrong = []

    def ask(row: int) -> None:
        one = {key: value[row : row + 2] for key, value in request.items()}
        for _ in range(20):
            found = opened.functions["token_ids"](**one)["logits"].numpy()
            wrong.append(np.abs(found - expected[row : row + 2]).max() > 1e-4)

    threads = [threading.Thread(target=ask, args=[row]) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [False] * 80


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


@pytest.mark.slow
def test_sigterm_is_handled_after_openvino_is_freed(export_with_engines, root):
    pytest.importorskip("openvino", reason="pip install 'keras-bert-pipeline[openvino]'")
    command = [sys.executable, "-c", FREED_THEN_TERMINATED, str(export_with_engines("embedding"))]
    done = subprocess.run(
        [*command, "openvino"], cwd=root, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
