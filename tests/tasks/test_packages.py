"""A package that writes the format and is not installed is reported before anything is written."""

import importlib.util

import pytest

from keras_bert.errors import InputError
from tests.export.conftest import make_task


@pytest.mark.parametrize(
    ("missing", "how", "message"),
    [
        ("onnx", {"engines": ("openvino",)}, "engines=openvino: the package onnx is not"),
        ("onnx", {"format": "onnx"}, "format='onnx': the package onnx is not"),
        (
            "onnxruntime",
            {"engines": ("onnxruntime", "openvino"), "int8": True},
            "engines=onnxruntime,openvino with int8: the package onnxruntime is not",
        ),
        ("onnxruntime", {"format": "onnx", "int8": True}, "format='onnx' with int8: the package o"),
    ],
)
def test_missing_package_names_the_extra(missing, how, message, monkeypatch, tmp_path):
    task = make_task("regression")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == missing else find(name, *a)
    )
    with pytest.raises(InputError, match=f"^{message}") as caught:
        task.export(tmp_path / "model" / "1", **how)
    assert str(caught.value).endswith("pip install 'keras-bert-pipeline[onnx]'")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_formats_that_need_no_package_are_written(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    absent = ("onnx", "onnxruntime", "openvino")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in absent else find(name, *a)
    )
    assert make_task("regression").export(tmp_path / "1").is_dir()
