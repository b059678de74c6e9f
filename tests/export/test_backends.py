"""Exports of task objects whose models run in JAX or torch are those of the TensorFlow backend."""

import json
import os
import subprocess

import keras
import numpy as np
import pytest

import keras_bert
from keras_bert.errors import InputError
from tests.export.conftest import make_task

EXPORT = """
import sys
import keras_bert
task = getattr(keras_bert, sys.argv[1]).from_pretrained(sys.argv[2], max_seq_length=12)
task.export(sys.argv[3])
"""


@pytest.mark.parametrize(
    ("backend", "name", "task"),
    [("jax", "pair", "TextClassifier"), ("torch", "ner", "EntityTagger")],
)
def test_other_backends_export_the_same_model(backend, name, task, backend_python, root, tmp_path):
    python = backend_python(backend)
    make_task(name).save_pretrained(tmp_path / "model")
    getattr(keras_bert, task).from_pretrained(tmp_path / "model", max_seq_length=12).export(
        tmp_path / "1"
    )
    process = subprocess.run(
        [python, "-c", EXPORT, task, tmp_path / "model", tmp_path / "2"],
        cwd=root,
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    infos = [json.loads((tmp_path / each / "export.json").read_text()) for each in ("1", "2")]
    assert infos[0] == infos[1]
    texts = ["the cat sat on the mat " * 3, ""]
    texts = (texts, texts) if name == "pair" else texts
    one, two = (keras_bert.load(tmp_path / each).predict(texts) for each in ("1", "2"))
    for key, expected in one.items():
        for value, other in zip(two[key], expected, strict=True):
            if np.asarray(other).dtype.kind == "f":
                np.testing.assert_allclose(value, other, atol=1e-5)
            else:
                assert np.array_equal(value, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (1e30, r"/1: the signature `serving_default` returns values that are not finite"),
        (np.nan, r"^model/model\.safetensors: .* are inf or NaN"),
    ],
)
def test_error_in_the_process_with_tensorflow_is_raised(factor, message, monkeypatch, tmp_path):
    task = make_task("regression")
    weight = task.model.trainable_variables[0]
    weight.assign(weight * factor)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(InputError, match=message):
        task.export(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []
