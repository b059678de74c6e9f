"""The export of a model that runs in JAX is that of the TensorFlow backend."""

import json

import keras
import numpy as np
import pytest

import keras_bert
from keras_bert.errors import InputError
from tests import processes
from tests.export.conftest import make_task

EXPORT = """
import sys
import keras_bert
classifier = keras_bert.TextClassifier.from_pretrained(sys.argv[1], max_seq_length=12)
classifier.export(sys.argv[2])
"""


def test_a_model_in_jax_is_exported_as_in_tensorflow(backend_python, tmp_path):
    make_task("pair").save_pretrained(tmp_path / "model")
    classifier = keras_bert.TextClassifier.from_pretrained(tmp_path / "model", max_seq_length=12)
    classifier.export(tmp_path / "1")
    command = ["-c", EXPORT, tmp_path / "model", tmp_path / "2"]
    processes.run_on("jax", backend_python("jax"), command)
    infos = [json.loads((tmp_path / each / "export.json").read_text()) for each in ("1", "2")]
    assert infos[0] == infos[1]
    texts = ["the cat sat on the mat " * 3, ""]
    expected, answers = (keras_bert.load(tmp_path / each).predict((texts, texts)) for each in "12")
    assert answers["label"].tolist() == expected["label"].tolist()
    np.testing.assert_allclose(answers["logits"], expected["logits"], atol=1e-5)


@pytest.mark.slow
def test_error_in_the_process_with_tensorflow_is_raised(monkeypatch, tmp_path):
    task = make_task("regression")
    weight = task.model.trainable_variables[0]
    weight.assign(weight * np.nan)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(InputError, match=r"^model/model\.safetensors: .* are inf or NaN"):
        task.export(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []
